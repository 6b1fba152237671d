#!/usr/bin/env bash
# Prints the hash of the kernels' sources that a result file notes, so that a later reader can tell whether it is of the same
# sources. Needs a git checkout; counts what is in the index.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
listing=$(git ls-files -s kernels ':!kernels/bench/results')
[[ -n $listing ]] || exit 1
printf '%s\n' "$listing" | sha256sum | cut -d ' ' -f 1
