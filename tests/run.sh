#!/usr/bin/env bash
# Installs what is missing, builds with warnings as errors, and runs every test that this machine can run. Ends with CTest's
# summary; fails when a test fails or none ran. Environment: BUILD_DIR (default build/ci), NORM_CUDA=OFF.
# Usage: run.sh         all of them
#        run.sh image   only the test labelled image, which the other leaves out: it builds the container image and tries it (root,
#                       minutes, some GB in build/image-proof)
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${BUILD_DIR:-$root/build/ci}
export NORM_CUDA_ARCHITECTURES=${NORM_CUDA_ARCHITECTURES:-90-real}

case ${1:-} in
  "") ;;
  image)
    "$root/deploy/install-deps.sh" --image
    cmake -G Ninja -S "$root/tests/image" -B "$root/build/image-test" >/dev/null
    exec ctest --test-dir "$root/build/image-test" --verbose --no-tests=error -L '^image$'
    ;;
  *)
    echo "run.sh: unknown argument '$1' (usage: run.sh [image])" >&2
    exit 2
    ;;
esac

"$root/deploy/install-deps.sh" --test
"$root/deploy/build.sh" "$build" -DNORM_WARNINGS_AS_ERRORS=ON

selection=()
gpu_tests=$(ctest --test-dir "$build" -N -L '^gpu$' | sed -n 's/^Total Tests: //p')
if nvidia-smi -L >/dev/null 2>&1; then
  echo "run.sh: a GPU is here: its ${gpu_tests} tests run too"
else
  selection=(-LE '^gpu$')
  echo
  echo "***************************************************************************************"
  if ((gpu_tests > 0)); then
    echo "run.sh: SKIPPED: ${gpu_tests} tests labelled gpu: no NVIDIA GPU on this machine."
  elif grep -q '^NORM_CUDA:.*=OFF' "$build/CMakeCache.txt"; then
    echo "run.sh: SKIPPED: all tests labelled gpu: built without CUDA."
  else
    echo "run.sh: SKIPPED: no tests labelled gpu are in this build."
  fi
  echo "run.sh: tests/run_gpu.sh in the bundle (deploy/bundle.sh) runs them on a machine with a GPU."
  echo "***************************************************************************************"
fi

# Speeds in the repository are of the sources they were measured with.
results=$root/kernels/bench/results/h200.json
if [[ -f $results ]]; then
  measured=$(sed -n 's/^ *"source_hash": "\([0-9a-f]*\)".*/\1/p' "$results")
  if ! current=$("$root/kernels/bench/source_hash.sh" 2>/dev/null); then
    echo "run.sh: no git checkout here: cannot tell whether kernels/bench/results is of these sources"
  elif [[ $measured != "$current" ]]; then
    echo "run.sh: WARNING: kernels/bench/results/h200.json was measured with other kernel sources (${measured:0:12}, now ${current:0:12})"
  fi
fi
echo
exec ctest --test-dir "$build" --output-on-failure --no-tests=error -j "$(nproc)" "${selection[@]}"
