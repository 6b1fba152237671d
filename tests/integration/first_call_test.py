#!/usr/bin/env python3
"""first_call.py against a real normd. Usage: first_call_test.py ROOT NORMD NORMCTL"""

import contextlib
import io
import json
import pathlib
import statistics
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv[1]).resolve()
NORMD, NORMCTL = sys.argv[2:4]
sys.path.insert(0, str(ROOT / "client/normctl/scripts"))

import first_call  # noqa: E402

MIX = "op=rms_norm shape=2x64 dtype=f32\nop=layer_norm shape=2x64 dtype=f32 direction=backward\n"


class FirstCallTest(unittest.TestCase):
    def run_script(self, *more):
        """Exit code, report, stdout, stderr."""
        with tempfile.TemporaryDirectory() as folder:
            mix, report = pathlib.Path(folder) / "mix.txt", pathlib.Path(folder) / "report.json"
            mix.write_text(MIX)
            out, error = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
                code = first_call.main(["--normd", NORMD, "--normctl", NORMCTL, "--device", "cpu", "--starts", "2", "--seconds",
                                        "0.2", "--mix", str(mix), "--json", str(report), *more])
            return code, json.loads(report.read_text()), out.getvalue(), error.getvalue()

    def test_compares_each_case_of_each_start(self):
        code, report, out, error = self.run_script("--most", "1e9")
        self.assertEqual(code, 0, error)
        self.assertEqual(report["starts"], 2)
        self.assertEqual(list(report["cases"]), ["rms_norm forward 2x64 f32", "layer_norm backward 2x64 f32"])
        for name, case in report["cases"].items():
            self.assertEqual((len(case["first_call_us"]), len(case["p99_us"])), (2, 2))
            self.assertGreater(min(case["first_call_us"]), 0)
            self.assertAlmostEqual(case["ratio"],
                                   statistics.mean(f / p for f, p in zip(case["first_call_us"], case["p99_us"])))
            self.assertIn(name, out)

    def test_fails_when_a_first_call_takes_too_long(self):
        code, report, _, error = self.run_script("--most", "1e-9")
        self.assertEqual(code, 1)
        self.assertIn("the first call takes more than 1e-09 times the p99: " + ", ".join(report["cases"]), error)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
