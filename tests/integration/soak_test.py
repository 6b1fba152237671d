#!/usr/bin/env python3
"""norm_soak against a real normd, in short. Usage: soak_test.py ROOT NORMD NORM_SOAK"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv[1]).resolve()
NORMD, NORM_SOAK = sys.argv[2:4]
# Two requests at once, one waiting.
SMALL_SERVER = ["--slots=1", "--max_queue_requests=1", "--max_batch_rows=1"]


class SoakTest(unittest.TestCase):
    def soak(self, flags, server_flags=()):
        """Exit code, report, output."""
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder) / "soak.json"
            arguments = " ".join([*flags, "--requests=12", "--max_elements=4096", f"--json={report}"])
            done = subprocess.run(
                [ROOT / "deploy/with-normd.sh", NORMD, "--device=cpu", *server_flags, "--", "sh", "-c",
                 f'exec {NORM_SOAK} --server="$NORMD_SERVER" --metrics="$NORMD_METRICS" {arguments}'],
                capture_output=True, text=True)
            self.assertTrue(report.exists(), done.stdout + done.stderr)
            return done.returncode, json.loads(report.read_text()), done.stdout + done.stderr

    def test_reports_connections_and_memory(self):
        flags = ["--seconds=4", "--clients=8", "--calls_per_connection=20", "--max_growth_mib=512"]
        code, report, output = self.soak([*flags, "--min_connections=9"])
        self.assertEqual(code, 0, output)
        self.assertTrue(report["good"])
        load, memory = report["load"], report["memory"]
        self.assertEqual((load["clients"], load["errors"], load["refused"], load["wrong"]), (8, 0, 0, 0))
        self.assertGreaterEqual(load["connections"], load["responses"] // 20)
        self.assertGreaterEqual(memory["samples"], 5)
        self.assertGreater(memory["rss_mib"]["settled"], 1)
        self.assertGreater(memory["in_flight_limit_mib"]["last"], 0)
        code, report, _ = self.soak([*flags, "--min_connections=1000000"])
        self.assertEqual((code, report["good"]), (1, False))

    def test_compares_an_overload_with_the_peak_of_its_run(self):
        flags = ["--peak_seconds=1", "--peak_in_flight=2", "--seconds=2", "--clients=40"]
        code, report, output = self.soak([*flags, "--overload", "--min_goodput=0.01"], SMALL_SERVER)
        self.assertEqual(code, 0, output)
        self.assertEqual((report["peak"]["refused"], report["peak"]["errors"]), (0, 0))
        self.assertGreater(report["load"]["refused"], 0)
        self.assertEqual((report["load"]["errors"], report["load"]["wrong"], report["load"]["bits_differ"]), (0, 0, 0))
        self.assertAlmostEqual(report["goodput_of_peak"],
                               report["load"]["responses_per_second"] / report["peak"]["responses_per_second"])
        self.assertIn("of the peak", output)
        code, report, _ = self.soak([*flags, "--overload", "--min_goodput=1e6"], SMALL_SERVER)
        self.assertEqual((code, report["good"]), (1, False))
        code, report, output = self.soak(flags, SMALL_SERVER)
        self.assertEqual((code, report["good"]), (1, False))
        self.assertGreater(report["load"]["errors"], 0)
        self.assertIn("code 14", output)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
