#!/usr/bin/env python3
"""Tests of the README's table of the serving path. Usage: readme_tables_test.py ROOT"""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv[1]).resolve()
sys.path.insert(0, str(ROOT / "client/normctl/scripts"))

import bars  # noqa: E402
import readme_tables  # noqa: E402


def figures(rate, volume, p50, **more):
    return {"requests_per_second": rate, "gb_per_second": volume, "latency_us": {"p50": p50, "p99": 2 * p50},
            "launches_per_request": 0.25, "over_echo": None, "over_alone": None, "server_version": "1.2.3", **more}


def run(*arguments, **more):
    return {"command": "normctl bench", "report": figures(*arguments, **more)}


def with_echo(rate, volume, p50, ratio, rounds=None, pairs_us=None):
    return run(rate, volume, p50, echo=figures(rate / ratio, volume / ratio, p50 - 30),
               over_echo={"requests_per_second_ratio": ratio, "p50_us": 30.0, "rounds": rounds, "pairs_us": pairs_us})


def weights(connections, in_flight, rate, launches):
    one = run(rate, 2.0, 900.0, options={"connections": connections, "in_flight": in_flight})
    one["report"]["launches_per_request"] = launches
    return one


REPORT = {
    "date": "2026-11-30", "commit": "0123456789abcdef", "device": "NVIDIA H200", "cores": 16, "kernel": "6",
    "normd": {
        "1mib_1": with_echo(1000.0, 2.0, 900.0, 0.8),
        "small": with_echo(30000.0, 2.0, 900.0, 0.75, rounds={"median": 0.77, "min": 0.7, "max": 0.8}),
        "lone": with_echo(3000.0, 0.2, 230.0, 0.5, pairs_us={"p50": 27.0}),
        "weights": run(25000.0, 2.0, 900.0),
        "flood": run(1000.0, 0.1, 300.0, options={"rate": 1000.0}, alone=figures(1000.0, 0.1, 200.0),
                     over_alone={"p50_ratio": 1.5, "p99_ratio": 1.5}),
        "64mib_1": {"command": "normctl bench", "error": "refused"},
    },
    "normd_beside_peer": {"small": run(30000.0, 2.0, 900.0), "large": run(50.0, 8.0, 900.0)},
    "peer": {"small": run(1500.0, 0.1, 9000.0, server_version="PyTorch 2"), "large": {"command": "", "error": "too slow"}},
}
TRITON = {
    "date": "2026-12-01", "commit": "fedcba9876543210",
    "triton": {
        "server_version": "Triton 2",
        "small": {"echo": {"report": figures(50000.0, 3.2, 500.0)}, "normd": {"report": figures(40000.0, 2.6, 900.0)},
                  "triton": {"report": figures(8000.0, 0.5, 9000.0)}},
        "lone": {"echo": {"report": figures(8000.0, 0.5, 120.0)}, "normd": {"report": figures(5000.0, 0.3, 200.0)},
                 "triton": {"report": figures(2000.0, 0.1, 500.0)}},
        "large": {"echo": {"report": figures(70.0, 9.0, 800.0)}, "normd": {"report": figures(60.0, 8.0, 900.0)}, "triton": {"error": "wrong"}},
    },
}


class ReadmeTablesTest(unittest.TestCase):
    def test_each_load_has_a_row_with_what_it_is_compared_with(self):
        text = readme_tables.render(REPORT)
        self.assertIn("NVIDIA H200, 16 cores for server and client, 2026-11-30, commit 0123456789ab;", text)
        for row in (
                "| 1 MiB, 1 connection x 2 in flight | 2.00 GB/s | echo of the same messages: 2.50 GB/s | 0.80 | 0.90 |",
                "| 4x4096, 16 connections x 8 | 30,000 calls/s | empty echo: 40,000 calls/s | 0.77 (0.70 to 0.80) | 0.75 |",
                "| 4x4096, one call at a time, p50 | 230 us | echo: 200 us | +27 us | +40 us |",
                "| 4x4096, 64 weights in turn, 16 connections x 8 | 25,000 calls/s | launches/request | 0.250 | 0.15 |",
                "| 4x4096 at 1,000/s beside a flood, p99 | 600 us | alone: 400 us | 1.5x | 3x |",
                "| 4x4096, 16 connections x 8 | 30,000 calls/s | PyTorch 2: 1,500 calls/s | 20.0x | 20x |"):
            self.assertIn(row, text)

    def test_cores_of_their_own_are_named(self):
        text = readme_tables.render(REPORT | {"server_cpus": "0-7", "client_cpus": "8-15"})
        self.assertIn("NVIDIA H200, server on cores 0-7, client on 8-15, 2026-11-30,", text)

    def test_a_run_without_pairs_has_the_difference_of_medians(self):
        report = json.loads(json.dumps(REPORT))
        del report["normd"]["lone"]["report"]["over_echo"]["pairs_us"]
        self.assertIn("| echo: 200 us | +30 us | +40 us |", readme_tables.render(report))

    def test_the_load_that_more_requests_do_not_exceed_has_a_row(self):
        sweep = [weights(16, 8, 20000.0, 0.3), weights(16, 16, 29500.0, 0.14), weights(32, 16, 30000.0, 0.08)]
        text = readme_tables.render(REPORT | {"weights_sweep": sweep})
        self.assertIn("| 4x4096, 64 weights in turn, at saturation, 16 connections x 16 | 29,500 calls/s | launches/request | 0.140 | 0.15 |",
                      text)
        rising = [*sweep, {"command": "", "error": "too many"}, weights(64, 16, 31000.0, 0.05)]
        self.assertIn("| 4x4096, 64 weights in turn, not saturated, 64 connections x 16 | 31,000 calls/s |",
                      readme_tables.render(REPORT | {"weights_sweep": rising}))

    def test_stages_stand_beside_what_the_server_counts(self):
        report = json.loads(json.dumps(REPORT))
        self.assertNotIn("Where a request's time goes", readme_tables.render(report))
        report["normd"]["lone"]["report"].update({
            "stages_us": {stage: {"p50": float(number)} for number, stage in enumerate(readme_tables.STAGES)},
            "server_stages_us": {"encode": 2.4, "send": 31.6}})
        self.assertIn("| 4x4096, one call at a time | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 2 | 32 |", readme_tables.render(report))

    def test_a_load_that_failed_has_none(self):
        text = readme_tables.render(REPORT)
        self.assertNotIn("64 MiB", text)

    def test_triton_has_a_table_of_its_own_run(self):
        text = readme_tables.calls(TRITON)
        self.assertIn("2026-12-01, commit fedcba987654,", text)
        self.assertIn("| load | echo of normd | normd | Triton 2 | normd over Triton |", text)
        self.assertIn("| 4x4096, 16 connections x 8 | 50,000 calls/s | 40,000 calls/s | 8,000 calls/s | 5.0x |", text)
        self.assertIn("| 4x4096, one call at a time, p50 | 120 us | 200 us | 500 us | 2.5x |", text)
        self.assertNotIn("64 MiB", text)

    def test_without_triton_there_is_no_table_of_it(self):
        self.assertEqual(readme_tables.calls(TRITON | {"triton": {"skipped": "not on this machine"}}), "")
        self.assertEqual(readme_tables.calls(REPORT), "")

    def test_check_fails_until_the_table_is_written(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            root = pathlib.Path(folder)
            (root / readme_tables.RESULTS).mkdir(parents=True)
            (root / readme_tables.RESULTS / "h200.json").write_text(json.dumps(REPORT))
            (root / "README.md").write_text("before\n<!-- serving results -->\nold\n<!-- end of serving results -->\nafter\n")
            self.assertEqual(readme_tables.main(["--check", folder]), 1)
            self.assertEqual(readme_tables.main([folder]), 0)
            self.assertEqual(readme_tables.main(["--check", folder]), 0)
            text = (root / "README.md").read_text()
            self.assertTrue(text.startswith("before\n<!-- serving results -->\nNVIDIA H200"))
            self.assertTrue(text.endswith("|\n<!-- end of serving results -->\nafter\n"))
            self.assertNotIn("Triton", text)
            (root / readme_tables.RESULTS / "h200_triton.json").write_text(json.dumps(TRITON))
            self.assertEqual(readme_tables.main(["--check", folder]), 1)
            self.assertEqual(readme_tables.main([folder]), 0)
            self.assertIn("Triton 2", (root / "README.md").read_text())


class BarsTest(unittest.TestCase):
    def test_a_line_says_what_a_load_reached(self):
        self.assertEqual(bars.describe("lone", REPORT["normd"]["lone"]),
                         "lone             3000.0/s    0.20 GB/s p50     230.0 p99     460.0 | of the echo 0.500, p50 +30.0 us "
                         "(pairs +27.0 us) | launches/request 0.250")
        self.assertIn("| of the echo 0.750 (rounds 0.770, 0.700 to 0.800), p50 +30.0 us |", bars.describe("small", REPORT["normd"]["small"]))
        self.assertEqual(bars.describe("64mib_1", REPORT["normd"]["64mib_1"]), "64mib_1      refused")

    def test_the_first_of_the_best_loads_is_at_saturation(self):
        self.assertIsNone(bars.saturation([]))
        self.assertIsNone(bars.saturation([weights(1, 1, 10.0, 1.0)]))
        loads = [weights(1, n, rate, 1.0) for n, rate in ((1, 90.0), (2, 97.5), (3, 100.0), (4, 98.0))]
        self.assertEqual(bars.saturation(loads), loads[1])
        self.assertIsNone(bars.saturation(loads[:1] + loads[2:3]))

    def test_programs_run_on_the_cores_that_are_named(self):
        self.assertEqual(bars.on_cores("0-3,8", ["normd", "--x"]), ["taskset", "--cpu-list", "0-3,8", "normd", "--x"])
        self.assertEqual(bars.on_cores(None, ["normd"]), ["normd"])

    def test_every_row_of_the_table_has_its_load(self):
        self.assertLessEqual({name for name, _ in readme_tables.ECHOES} | {"small", "small_same", "lone", "weights", "flood"},
                             set(bars.LOADS))
        self.assertEqual({"small", "large", "lone"}, set(bars.PEER_LOADS))
        self.assertEqual({"small", "1mib", "large", "lone"}, set(bars.CALL_LOADS))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
