#!/usr/bin/env bash
# Configures and builds normd. Usage: build.sh BUILD_DIR [cmake -D arguments...] [-- targets...]
# CUDA is built in when nvcc is found: for the GPU of this machine, for sm_90 where there is none, or for
# NORM_CUDA_ARCHITECTURES (a CMake list, or all: each that the project is made for) where that is set. NORM_CUDA=OFF builds
# for the CPU alone.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${1:?usage: build.sh BUILD_DIR [-D...] [-- targets...]}
shift
definitions=()
targets=()
while (($# > 0)); do
  if [[ $1 == -- ]]; then
    shift
    for target in "$@"; do targets+=(--target "$target"); done
    break
  fi
  definitions+=("$1")
  shift
done

nvcc=
if [[ ${NORM_CUDA:-AUTO} != OFF ]]; then
  nvcc=$(command -v nvcc || true)
  if [[ -z $nvcc && -x /usr/local/cuda/bin/nvcc ]]; then nvcc=/usr/local/cuda/bin/nvcc; fi
fi
if [[ -n $nvcc ]]; then
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d '. ' || true)
  architectures=${NORM_CUDA_ARCHITECTURES:-${capability:-90}-real}
  echo "build.sh: CUDA backend for $architectures ($nvcc), and the CPU backend"
  definitions+=("-DNORM_CUDA=ON" "-DCMAKE_CUDA_COMPILER=$nvcc")
  # The project's own list stands in deploy/cmake/NormCuda.cmake.
  [[ $architectures == all ]] || definitions+=("-DCMAKE_CUDA_ARCHITECTURES=$architectures")
else
  echo "build.sh: no nvcc in use: CPU backend only"
  definitions+=("-DNORM_CUDA=OFF")
fi
if command -v ccache >/dev/null; then
  definitions+=("-DCMAKE_C_COMPILER_LAUNCHER=ccache" "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"
    "-DCMAKE_CUDA_COMPILER_LAUNCHER=ccache")
fi

cmake -G Ninja -S "$root" -B "$build" "${definitions[@]}"
cmake --build "$build" "${targets[@]}"
