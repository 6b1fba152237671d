#!/usr/bin/env bash
# Runs a command beside a normd on free ports and stops the server by SIGTERM afterwards.
# Usage: with-normd.sh NORMD [normd flags...] -- COMMAND [arguments...]
# COMMAND finds the addresses in NORMD_SERVER and NORMD_METRICS (host:port), the process id in NORMD_PID.
# Exit status: the command's; 1 when the server does not start or does not exit with 0.
set -euo pipefail

server_command=()
while (($# > 0)) && [[ $1 != -- ]]; do
  server_command+=("$1")
  shift
done
if ((${#server_command[@]} == 0 || $# < 2)); then
  echo "usage: with-normd.sh NORMD [flags...] -- COMMAND [arguments...]" >&2
  exit 2
fi
shift

folder=$(mktemp -d)
server=
# shellcheck disable=SC2317  # called by the trap
cleanup() {
  if [[ -n $server ]]; then
    kill -KILL "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
  fi
  rm -rf "$folder"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

show_log() { sed 's/^/normd: /' "$folder/log" >&2; }

"${server_command[@]}" --listen=127.0.0.1:0 --metrics_listen=127.0.0.1:0 --port_file="$folder/ports" \
  >"$folder/log" 2>&1 &
server=$!
# A GPU's first context takes seconds; a server that dies ends the wait at once.
for ((i = 0; i < 600; ++i)); do
  [[ -s $folder/ports ]] && break
  if ! kill -0 "$server" 2>/dev/null; then
    wait "$server" || status=$?
    server=
    echo "with-normd.sh: normd ended with exit code ${status:-0} before it was ready" >&2
    show_log
    exit 1
  fi
  sleep 0.1
done
if [[ ! -s $folder/ports ]]; then
  echo "with-normd.sh: normd was not ready within 60 s" >&2
  show_log
  exit 1
fi
NORMD_SERVER=$(sed -n 's/^grpc=//p' "$folder/ports")
NORMD_METRICS=$(sed -n 's/^metrics=//p' "$folder/ports")
NORMD_PID=$server
export NORMD_SERVER NORMD_METRICS NORMD_PID

result=0
"$@" || result=$?

kill -TERM "$server" 2>/dev/null || true
status=0
wait "$server" || status=$?
server=
if ((status != 0)); then
  echo "with-normd.sh: normd ended with exit code $status" >&2
  show_log
  ((result != 0)) || result=1
fi
exit "$result"
