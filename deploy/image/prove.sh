#!/usr/bin/env bash
# Builds the Dockerfile as it is, with buildah, on local stand-ins for its two base images, and tries the image: who it runs as,
# what is in it and what not, how it starts, answers, is checked and ends. Usage: prove.sh [FOLDER]   (default build/image-proof)
# The stand-ins: Debian 12 by debootstrap; this machine's CUDA toolkit in the layout of NVIDIA's image. FOLDER keeps them and
# the compiler cache for the next time. Environment: CUDA_ARCHITECTURES (default 90-real: one, since each takes minutes),
# TARGET=test builds that stage and stops. Exit status 77: something that this needs is missing here.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=$(realpath -m "${1:-$root/build/image-proof}")
target=${TARGET:-runtime}
cuda=/usr/local/cuda

skip() {
  echo "***************************************************************************************"
  echo "prove.sh: SKIPPED: the image was neither built nor tried: $1"
  echo "***************************************************************************************"
  exit 77
}
((EUID == 0)) || skip "not root"
for tool in buildah debootstrap ip openssl unshare; do
  command -v "$tool" >/dev/null || skip "no $tool here (deploy/install-deps.sh --image installs it)"
done
[[ -x $cuda/bin/nvcc && -e $cuda/lib64/libcudart_static.a ]] || skip "no CUDA toolkit in $cuda to stand for NVIDIA's image"
unshare --mount --net true 2>/dev/null || skip "no namespaces can be made here"

# buildah keeps cache mounts in its temporary folder.
export TMPDIR=$folder/tmp BUILDAH_ISOLATION=chroot BUILDAH_FORMAT=docker
mkdir -p "$TMPDIR"
buildah=(buildah --root "$folder/storage" --runroot "$folder/run" --storage-driver vfs)
debian_image=$(sed -n 's/^FROM \(debian:[^ ]*\) AS runtime$/\1/p' "$root/Dockerfile")
cuda_image=$(sed -n 's/^FROM \([^ ]*\) AS cuda$/\1/p' "$root/Dockerfile")

# import NAME FOLDER: an image of one layer under the base image's name.
import() {
  local container
  container=$("${buildah[@]}" from scratch)
  "${buildah[@]}" add --quiet "$container" "$2" / >/dev/null
  "${buildah[@]}" config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container"
  "${buildah[@]}" commit --quiet --rm "$container" "$1" >/dev/null
}

if ! "${buildah[@]}" inspect --type image "docker.io/library/$debian_image" >/dev/null 2>&1; then
  echo "prove.sh: making the stand-in for $debian_image"
  tree=$folder/debian
  # Debian from where this machine takes it: lines of a repository's address and a suite.
  repositories=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Identifier: Packages' | sort -u |
    grep -E ' bookworm(-updates|-security)?$') || skip "apt knows no bookworm here"
  main_address=$(awk '$2 == "bookworm" { print $1; exit }' <<<"$repositories")
  debootstrap --variant=minbase --include=ca-certificates bookworm "$tree" "$main_address" >"$folder/debootstrap.log" 2>&1 ||
    { tail -n 5 "$folder/debootstrap.log" >&2; exit 1; }
  ! grep -q " $tree/" /proc/mounts || umount "$tree/proc"
  # What Debian's slim images leave out, and their sources; apt reaches the mirror the way this machine does.
  rm -rf "$tree"/usr/share/{doc,info,lintian,linda,locale,man}/* "$tree"/var/cache/apt/* "$tree"/var/lib/apt/lists/* "$tree"/var/log/*.log
  rm -f "$tree/etc/apt/sources.list"
  while read -r address suite; do
    printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n\n' \
      "$address" "$suite" /usr/share/keyrings/debian-archive-keyring.gpg
  done <<<"$repositories" >"$tree/etc/apt/sources.list.d/debian.sources"
  apt-config dump | grep '^Acquire::' | grep -v ' "";$' >"$tree/etc/apt/apt.conf.d/90stand-in" || true
  # So does pip, which the test stage runs: where it looks, and the authorities that this machine trusts besides Debian's.
  [[ ! -e /etc/pip.conf ]] || cp /etc/pip.conf "$tree/etc/"
  cp -r /usr/local/share/ca-certificates/. "$tree/usr/local/share/ca-certificates/"
  TMPDIR=/tmp chroot "$tree" update-ca-certificates >/dev/null
  import "docker.io/library/$debian_image" "$tree"
  rm -rf --one-file-system "$tree"
fi

if ! "${buildah[@]}" inspect --type image "docker.io/$cuda_image" >/dev/null 2>&1; then
  echo "prove.sh: making the stand-in for $cuda_image"
  # bin, nvvm and targets/x86_64-linux are folders there, include and lib64 links. Libraries that normd does not use stay away.
  toolkit=$folder/cuda/usr/local/cuda-13.0
  mkdir -p "$toolkit/targets/x86_64-linux/lib"
  cp -a "$(realpath "$cuda")/bin" "$(realpath "$cuda")/nvvm" "$toolkit/"
  cp -a "$(realpath "$cuda/include")" "$toolkit/targets/x86_64-linux/include"
  cp -a "$cuda"/lib64/libcuda{rt,devrt}* "$cuda"/lib64/libculibos.a "$toolkit/targets/x86_64-linux/lib/"
  ln -s targets/x86_64-linux/include "$toolkit/include"
  ln -s targets/x86_64-linux/lib "$toolkit/lib64"
  import "docker.io/$cuda_image" "$folder/cuda"
  rm -rf "$folder/cuda"
fi

echo "prove.sh: building the stage $target for ${CUDA_ARCHITECTURES:-90-real}"
"${buildah[@]}" bud --pull-never --no-cache --force-rm --target "$target" --tag "normd:$target" --file "$root/Dockerfile" \
  --build-arg "CUDA_ARCHITECTURES=${CUDA_ARCHITECTURES:-90-real}" \
  --build-arg "REVISION=$(git -C "$root" rev-parse HEAD 2>/dev/null || echo unknown)" "$root"
"${buildah[@]}" rmi --prune >/dev/null # what had this tag before
[[ $target == runtime ]] || exit 0

container=$("${buildah[@]}" from --pull-never "normd:$target")
# shellcheck disable=SC2064  # the container of now
trap "${buildah[*]} rm $container >/dev/null" EXIT
# A network of its own: the ports that the image names are free there, and nobody else reaches them.
unshare --net -- bash -c 'ip link set lo up && exec "$@"' bash \
  python3 -B "$root/deploy/image/try_image.py" "$root" "$container" "${buildah[@]}"
