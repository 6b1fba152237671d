#!/usr/bin/env bash
# Prints what normd's programs hold of other projects, headers or archives, as lines "name version package-url".
set -euo pipefail

for package in libcli11-dev nlohmann-json3-dev; do
  dpkg-query -W -f='${Package} ${Version} pkg:deb/debian/${Package}@${Version}?arch=${Architecture}\n' "$package"
done | awk '{ gsub(/[+]/, "%2B", $3); print }'
if command -v nvcc >/dev/null; then
  runtime=$(nvcc --version | sed -n 's/.*, V\([0-9.]*\)$/\1/p')
  echo "cuda-cudart $runtime pkg:generic/nvidia/cuda-cudart@$runtime"
fi
