"""What the tests of deploy/ share: the command line ROOT NORMD, and skipping that CTest sees."""

import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(sys.argv[1]).resolve()
NORMD = sys.argv[2]
PROJECT_VERSION = re.search(r"^project\(normd VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE).group(1)


def skip(reason):
    """CTest marks the test as skipped, and shows the reason with --output-on-failure."""
    print(f"SKIPPED: {reason}")
    sys.exit(0)


def refusal_of_flags(flags):
    """What normd says against these flags, or None: it reads them all before it shows its version."""
    ended = subprocess.run([NORMD, *flags, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return ended.stdout if ended.returncode else None


def default_flag_seconds(name):
    """The default of a flag of normd that is a duration in whole seconds, as --help prints it."""
    text = subprocess.run([NORMD, "--help"], check=True, stdout=subprocess.PIPE, text=True).stdout
    found = re.search(rf"^  --{name}=(\d+)s?$", text, re.MULTILINE)
    return int(found.group(1))


def main():
    unittest.main(argv=sys.argv[:1])
