#!/usr/bin/env python3
"""The systemd unit, read by systemd-analyze. Usage: systemd_test.py ROOT NORMD"""

import configparser
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import deploy_case
from deploy_case import NORMD, ROOT

UNIT = ROOT / "deploy/systemd/normd.service"
GPU_UNIT = ROOT / "deploy/systemd/normd-gpu.service"
PROGRAM = "/opt/normd/bin/normd"
MOST_EXPOSED = 20  # tenths, as systemd-analyze security counts: 0 is shut off from everything
if shutil.which("systemd-analyze") is None:
    deploy_case.skip("the unit was not read: no systemd-analyze here (Debian's package systemd)")


def analyze(text, *arguments, name=UNIT.name):
    """systemd-analyze on a unit with the program that was built in place of the installed one."""
    with tempfile.TemporaryDirectory() as folder:
        unit = pathlib.Path(folder) / name
        unit.write_text(text.replace(PROGRAM, NORMD))
        return subprocess.run(["systemd-analyze", *arguments, unit], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def read(unit=UNIT):
    parser = configparser.ConfigParser(strict=True, interpolation=None)
    parser.optionxform = str
    parser.read(unit)
    return parser


class Unit(unittest.TestCase):
    def test_systemd_knows_every_word(self):
        ended = analyze(UNIT.read_text(), "verify")
        self.assertEqual((ended.returncode, ended.stdout), (0, ""))
        wrong = analyze(UNIT.read_text().replace("ProtectHome=yes", "ProtectHouse=yes"), "verify")
        self.assertIn("'ProtectHouse'", wrong.stdout)

    def test_device_files_are_there_before_it_starts(self):
        text = GPU_UNIT.read_text()
        for program in ("/usr/bin/nvidia-smi", "/usr/bin/nvidia-modprobe"):
            self.assertIn(f"ExecStart=-{program} ", text)  # a machine without them says more by normd
            text = text.replace(program, "/bin/true")
        ended = analyze(text, "verify", name=GPU_UNIT.name)
        self.assertEqual((ended.returncode, ended.stdout), (0, ""))
        wrong = analyze(text.replace("RemainAfterExit", "RemainsAfterExit"), "verify", name=GPU_UNIT.name)
        self.assertIn("'RemainsAfterExit'", wrong.stdout)
        unit = read()["Unit"]
        for key in ("Wants", "After"):
            self.assertIn(GPU_UNIT.name, unit[key].split())

    def test_it_is_shut_off(self):
        ended = analyze(UNIT.read_text(), "security", "--offline=true", f"--threshold={MOST_EXPOSED}")
        self.assertEqual(ended.returncode, 0, ended.stdout[-300:])
        opened = analyze(UNIT.read_text().replace("CapabilityBoundingSet=\n", "").replace("SystemCallFilter=@system-service\n", ""),
                         "security", "--offline=true", f"--threshold={MOST_EXPOSED}")
        self.assertNotEqual(opened.returncode, 0)

    def test_it_may_take_as_long_as_a_drain(self):
        service = read()["Service"]
        drained = deploy_case.default_flag_seconds("drain_delay") + deploy_case.default_flag_seconds("drain_timeout")
        self.assertGreaterEqual(int(service["TimeoutStopSec"].removesuffix("s")), drained + 5)
        self.assertEqual(service["KillMode"], "mixed")

    def test_what_is_not_tried_again_is_normds_code_for_wrong_flags(self):
        code = re.search(r"kExitUsage = (\d+);", (ROOT / "server/main.cc").read_text()).group(1)
        self.assertEqual(read()["Service"]["RestartPreventExitStatus"], code)
        self.assertIsNotNone(deploy_case.refusal_of_flags(["--no_such_flag"]))


if __name__ == "__main__":
    deploy_case.main()
