#!/usr/bin/env python3
"""The Dockerfile and its scripts, without building an image. Usage: image_test.py ROOT NORMD"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import deploy_case
from deploy_case import NORMD, PROJECT_VERSION, ROOT

HADOLINT = pathlib.Path(sys.executable).parent / "hadolint"
DOCKERFILE = ROOT / "Dockerfile"
try:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator
except ImportError as error:
    deploy_case.skip(f"the Dockerfile was not checked: {error}")


def hadolint(text):
    return subprocess.run([HADOLINT, "-"], input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


class Dockerfile(unittest.TestCase):
    def test_hadolint_finds_no_fault(self):
        ended = hadolint(DOCKERFILE.read_text())
        self.assertEqual((ended.returncode, ended.stdout), (0, ""))
        self.assertIn("DL3006", hadolint("FROM debian\nUSER a\n").stdout)

    def test_it_says_the_projects_version(self):
        self.assertIn(f"\nARG VERSION={PROJECT_VERSION}\n", DOCKERFILE.read_text())

    def test_toolkit_is_of_the_series_that_its_image_has(self):
        text = DOCKERFILE.read_text()
        series = re.search(r"^FROM nvidia/cuda:(\d+\.\d+)\.\d+-devel-\w+[\d.]* AS cuda$", text, re.MULTILINE).group(1)
        self.assertIn(f"COPY --from=cuda /usr/local/cuda-{series} ", text)

    def test_normd_takes_the_flags_that_it_starts_with(self):
        entry = json.loads(re.search(r"^ENTRYPOINT (.*)$", DOCKERFILE.read_text(), re.MULTILINE).group(1))
        self.assertEqual(entry[1:], ["--flagfile=/etc/normd/normd.flags"])
        self.assertIn("COPY deploy/image/normd.flags /etc/normd/normd.flags\n", DOCKERFILE.read_text())
        rest = json.loads(re.search(r"^CMD (.*)$", DOCKERFILE.read_text(), re.MULTILINE).group(1))
        self.assertIsNone(deploy_case.refusal_of_flags([f"--flagfile={ROOT}/deploy/image/normd.flags", *rest]))


class Scripts(unittest.TestCase):
    def test_packages_hold_every_library(self):
        packages = subprocess.run([ROOT / "deploy/image/debian-packages.sh", "/bin/bash", "/usr/bin/dpkg-query"], check=True,
                                  stdout=subprocess.PIPE, text=True).stdout.split()
        self.assertIn("libtinfo6", packages)  # bash's
        self.assertNotIn("libc6", packages)
        self.assertEqual(packages, sorted(set(packages)))

    def test_sbom_is_cyclonedx_and_complete(self):
        compiled_in = subprocess.run([ROOT / "deploy/image/compiled-in.sh"], check=True, stdout=subprocess.PIPE, text=True).stdout
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(compiled_in)
            file.flush()
            text = subprocess.run([ROOT / "deploy/image/sbom.sh", "1.2.3", file.name], check=True, stdout=subprocess.PIPE, text=True).stdout
        self.assertIsNone(JsonStrictValidator(SchemaVersion.V1_5).validate_str(text))
        document = json.loads(text)
        self.assertEqual(document["metadata"]["component"]["version"], "1.2.3")
        packages = subprocess.run(["dpkg-query", "-W", "-f=${db:Status-Status} ${Package} ${Version} ${Architecture}\\n"], check=True,
                                  stdout=subprocess.PIPE, text=True).stdout.splitlines()
        installed = [line.split()[1:] for line in packages if line.startswith("installed ")]
        urls = [component["purl"] for component in document["components"]]
        self.assertEqual(len(urls), len(installed) + len(compiled_in.splitlines()))
        for name, version, architecture in installed:
            escaped = [part.replace("+", "%2B").replace(":", "%3A") for part in (name, version)]
            self.assertIn(f"pkg:deb/debian/{escaped[0]}@{escaped[1]}?arch={architecture}&distro=debian-12", urls)
        listed = {component["name"] for component in document["components"]}
        self.assertLessEqual({"nlohmann-json3-dev", "libcli11-dev"}, listed)


if __name__ == "__main__":
    deploy_case.main()
