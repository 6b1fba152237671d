#!/usr/bin/env bash
# Prints as CycloneDX 1.5 JSON the Debian packages that are installed here, and what the programs hold themselves.
# Usage: sbom.sh VERSION COMPILED_IN   (normd's version; a file of lines "name version package-url")
set -euo pipefail

version=$1
compiled_in=$2
release=$(sed -n 's/^VERSION_ID="\(.*\)"/\1/p' /etc/os-release)

cat <<EOF
{
  "bomFormat": "CycloneDX",
  "specVersion": "1.5",
  "version": 1,
  "metadata": {
    "component": {
      "type": "container", "bom-ref": "normd", "name": "normd", "version": "$version",
      "licenses": [{"license": {"id": "Apache-2.0"}}]
    }
  },
  "components": [
EOF
awk '{
  printf "    {\"type\": \"library\", \"bom-ref\": \"%s\", \"name\": \"%s\", \"version\": \"%s\", \"purl\": \"%s\"},\n", $3, $1, $2, $3
}' "$compiled_in"
# Package names and versions hold no character that JSON escapes; + and : are encoded in package URLs.
dpkg-query -W -f='${db:Status-Status} ${Package} ${Version} ${Architecture} ${source:Package} ${source:Version}\n' |
  awk -v release="$release" '
    function escaped(text) { gsub(/\+/, "%2B", text); gsub(/:/, "%3A", text); return text }
    $1 == "installed" {
      url = "pkg:deb/debian/" escaped($2) "@" escaped($3) "?arch=" $4 "&distro=debian-" release
      printf "%s    {\"type\": \"library\", \"bom-ref\": \"%s\", \"name\": \"%s\", \"version\": \"%s\", \"purl\": \"%s\",", \
        separator, url, $2, $3, url
      printf " \"properties\": [{\"name\": \"debian:source\", \"value\": \"%s %s\"}]}", $5, $6
      separator = ",\n"
    }
    END { print "" }'
cat <<EOF
  ]
}
EOF
