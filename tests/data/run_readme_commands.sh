#!/usr/bin/env bash
# Runs the normctl commands of README.md as they stand, one after another, against the server of NORMD_SERVER.
# Usage: run_readme_commands.sh README.md NORMCTL
set -euo pipefail

readme=$1
program=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR=$folder

# The block after the line <!-- commands run by tests -->.
commands=$(awk '/<!-- commands run by tests -->/ { found = 1; next }
  found && /^```/ { if (inside) exit; inside = 1; next }
  inside { print }' "$readme")
# shellcheck disable=SC2317  # called by the commands
normctl() { "$program" "$@" --server "$NORMD_SERVER"; }
count=$(grep -c '^normctl' <<<"$commands")
((count >= 4))
eval "$commands"
echo "$count commands ran"
