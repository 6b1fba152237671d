#!/usr/bin/env bash
# From a fresh clone to verified results: installs what is missing, builds, starts normd on free ports, normalizes the real
# inputs of tests/data, compares them with golden results, shows metrics, stops the server. Exit 0 only if all of it is right.
# Environment: BUILD_DIR (default build/quickstart), NORM_CUDA=OFF, NORM_CUDA_ARCHITECTURES.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# The part that runs beside the server.
if [[ ${1:-} == --beside-server ]]; then
  normctl=$2
  "$normctl" info --server "$NORMD_SERVER" | sed -n '/^normd\|^cuda\|^device\|^limits/p'
  echo
  "$normctl" verify "$root/tests/data/manifest.json" --server "$NORMD_SERVER"
  echo
  echo "metrics at http://$NORMD_METRICS/metrics, totals:"
  exec {connection}<>"/dev/tcp/${NORMD_METRICS%:*}/${NORMD_METRICS##*:}"
  printf 'GET /metrics HTTP/1.0\r\nHost: normd\r\nConnection: close\r\n\r\n' >&"$connection"
  metrics=$(cat <&"$connection")
  exec {connection}>&-
  for name in normd_requests_total normd_executions_total normd_kernel_bytes_total normd_kernel_seconds_total \
    normd_transport_bytes_total; do
    awk -v name="$name" 'index($1, name) == 1 && substr($1, length(name) + 1, 1) ~ /^[{]?$/ { sum += $2; found = 1 }
      END { if (found) printf "  %-32s %.10g\n", name, sum; else printf "  %-32s (none)\n", name }' <<<"$metrics"
  done
  grep -q '^normd_requests_total' <<<"$metrics" || {
    echo "quickstart.sh: the metrics endpoint counts no requests" >&2
    exit 1
  }
  exit 0
fi

build=${BUILD_DIR:-$root/build/quickstart}
"$root/deploy/install-deps.sh"
"$root/deploy/build.sh" "$build" -DNORM_BUILD_TESTS=OFF -- normd normctl
echo
"$root/deploy/with-normd.sh" "$build/server/normd" -- \
  "$root/deploy/quickstart.sh" --beside-server "$build/client/normctl/normctl"
echo
echo "quickstart.sh: every result is right, and normd stopped cleanly"
