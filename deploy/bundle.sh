#!/usr/bin/env bash
# Makes dist/normd-<version>-linux-x86_64 and its tarball: programs, tests and every shared library but glibc's, so that it
# runs on any Linux with a glibc no older than this machine's and nothing else installed.
# Usage: bundle.sh [BUILD_DIR]   (default build/bundle)
# Environment: NORM_CUDA=OFF, NORM_CUDA_ARCHITECTURES (default as in build.sh), MAX_MIB (default 60).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${1:-$root/build/bundle}
"$root/deploy/install-deps.sh" --test
# DT_RPATH, not DT_RUNPATH: it also holds for the libraries' own dependencies. Tests look for tests/data and tests/shapes
# relative to the bundle's folder.
"$root/deploy/build.sh" "$build" -DNORM_TEST_FILES_DIR=tests "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags" -- \
  normd normctl gpu_tests

version=$(sed -n 's/^project(normd VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
name=normd-$version-linux-x86_64
bundle=$root/dist/$name
rm -rf "$bundle" "$bundle.tar.gz"
mkdir -p "$bundle"/{bin,lib,tests,deploy}

for component in normd normbench gpu_tests; do
  cmake --install "$build" --prefix "$bundle" --component "$component" --strip >/dev/null
done
# What run_gpu.sh runs.
sed -n 's,.*/bin/,,p' "$build/install_manifest_gpu_tests.txt" | sort >"$bundle/tests/gpu_programs.txt"

glibc='^(ld-linux-x86-64|libc|libm|libpthread|libdl|librt|libresolv|libutil|libnsl|libanl|libmvec|libcuda)\.so'
for program in "$bundle"/bin/*; do
  ldd "$program" | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }'
done | sort -u | while read -r library path; do
  if ! [[ $library =~ $glibc || -e $bundle/lib/$library ]]; then cp -L "$path" "$bundle/lib/$library"; fi
done

if [[ -x $bundle/bin/normbench ]]; then
  # What a result file notes: the bundle's machine has no checkout.
  {
    echo "commit=$(git -C "$root" rev-parse HEAD 2>/dev/null || echo unknown)"
    echo "source_hash=$("$root/kernels/bench/source_hash.sh" 2>/dev/null || echo unknown)"
  } >"$bundle/share/normbench/source.txt"
fi
cp -r "$root/tests/data" "$bundle/tests/data"
if [[ -d $root/tests/shapes ]]; then cp -r "$root/tests/shapes" "$bundle/tests/shapes"; fi
cp "$root/tests/run_gpu.sh" "$bundle/tests/run_gpu.sh"
cp "$root/deploy/with-normd.sh" "$bundle/deploy/with-normd.sh"
cp "$root/LICENSE" "$root/README.md" "$bundle/"

# Every library that is not glibc's must now be found inside the bundle.
for program in "$bundle"/bin/*; do
  while read -r library path; do
    if ! [[ $library =~ $glibc ]] && [[ $path != "$bundle"/* ]]; then
      echo "bundle.sh: $(basename "$program") takes $library from ${path:-nowhere}" >&2
      exit 1
    fi
  done < <(ldd "$program" | awk '$2 == "=>" { path = $3; sub(/^not$/, "", path); print $1, path }' |
    while read -r library path; do echo "$library ${path:+$(realpath "$path")}"; done)
done
"$bundle/bin/normctl" --version >/dev/null

tar -C "$root/dist" -czf "$bundle.tar.gz" "$name"
size=$(du -sm "$bundle" | cut -f 1)
contents=("$bundle"/bin/* "$bundle"/lib/*)
echo "bundle.sh: $bundle ($size MiB, ${#contents[@]} programs and libraries), $bundle.tar.gz" \
  "($(du -sm "$bundle.tar.gz" | cut -f 1) MiB)"
if ((size > ${MAX_MIB:-60})); then
  echo "bundle.sh: larger than ${MAX_MIB:-60} MiB" >&2
  exit 1
fi
