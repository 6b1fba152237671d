#!/usr/bin/env python3
"""Tests of normctl's plot of latency against load. Usage: bench_plot_test.py ROOT"""

import contextlib
import importlib.util
import io
import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv[1]).resolve()
sys.path.insert(0, str(ROOT / "client/normctl/scripts"))

import bench_plot  # noqa: E402

HAVE_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None


def figures(requests_per_second, p50):
    latency = p50 and {"mean": p50, "p50": p50, "p90": 2 * p50, "p99": 3 * p50, "p99.9": 4 * p50, "max": 5 * p50}
    return {"requests_per_second": requests_per_second, "latency_us": latency}


def point(rate, p50, echo_p50=None):
    one = figures(rate * 0.99, p50)
    one.update({"rate": rate, "echo": figures(rate, echo_p50) if echo_p50 else None})
    return one


def sweep():
    peak = figures(1000.0, 900.0)
    peak["cases"] = [{"name": "rms_norm forward 4x4096 bf16"}]
    return {"options": {"transport": "unary", "echo": "same", "connections": 4, "in_flight": 8},
            "server_version": "1.2.3", "devices": ["cpu"], "peak": peak,
            "points": [point(100.0, 50.0, 30.0), point(500.0, 80.0, 31.0), point(900.0, None, None)]}


class BenchPlotTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def file(self, name, text):
        path = pathlib.Path(self.folder.name) / name
        path.write_text(text)
        return str(path)

    def test_curves_hold_the_points_that_completed_requests(self):
        points = sweep()["points"]
        self.assertEqual(bench_plot.curve(points, "p99"), ([99.0, 495.0], [150.0, 240.0]))
        self.assertEqual(bench_plot.echo_curve(points, "p50"), ([100.0, 500.0], [30.0, 31.0]))

    def test_other_files_are_refused_by_name(self):
        for text in ("{", "[]", json.dumps({"options": {}, "latency_us": None})):
            path = self.file("other.json", text)
            with self.assertRaisesRegex(ValueError, "other.json"):
                bench_plot.read_sweep(path)
        with self.assertRaisesRegex(ValueError, "nowhere.json"):
            bench_plot.read_sweep("nowhere.json")
        with self.assertRaises(SystemExit) as ended:
            bench_plot.main([self.file("one.json", "{}"), "--out", "/nowhere/plot.svg"])
        self.assertIn("it is not of normctl bench --sweep", str(ended.exception))

    @unittest.skipUnless(HAVE_MATPLOTLIB, "matplotlib is not installed")
    def test_a_plot_names_what_it_shows(self):
        out = pathlib.Path(self.folder.name) / "plot.svg"
        one, two = self.file("one.json", json.dumps(sweep())), self.file("two.json", json.dumps(sweep()))
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            bench_plot.main([one, two, "--out", str(out)])
        self.assertEqual(printed.getvalue(), f"{out}\n")
        svg = out.read_text()
        for text in ("one: rms_norm forward 4x4096 bf16, unary, p99.9", "two: rms_norm forward", "--echo=same, p50",
                     "normd 1.2.3 on cpu, 4 connections x 8 in flight", "requests/s answered"):
            self.assertIn(text, svg)
        first = svg
        with contextlib.redirect_stdout(io.StringIO()):
            bench_plot.main([one, two, "--out", str(out)])
        self.assertEqual(out.read_text(), first)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
