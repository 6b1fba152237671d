#!/usr/bin/env bash
# Prints the Debian packages whose shared libraries these programs load, one a line, without glibc's.
# Usage: debian-packages.sh PROGRAM...
set -euo pipefail

for program in "$@"; do
  ldd "$program" | while read -r library arrow path _; do
    [[ $arrow == "=>" ]] || continue
    if [[ $path == not ]]; then
      echo "debian-packages.sh: $program needs $library, which is not here" >&2
      exit 1
    fi
    # dpkg knows files by the names of before /lib became a link to /usr/lib.
    real=$(realpath "$path")
    dpkg-query -S "$real" 2>/dev/null || dpkg-query -S "${real#/usr}" || {
      echo "debian-packages.sh: $program loads $real, which is of no Debian package" >&2
      exit 1
    }
  done
done | sed 's/:.*//' | sort -u | grep -vx -e libc6
