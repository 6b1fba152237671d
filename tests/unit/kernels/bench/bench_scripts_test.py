#!/usr/bin/env python3
"""Tests of normbench's Python scripts that need neither a GPU nor PyTorch. Usage: bench_scripts_test.py ROOT"""

import contextlib
import importlib
import importlib.util
import io
import json
import os
import pathlib
import re
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv[1]).resolve()
BENCH = ROOT / "kernels/bench"
SAMPLE = pathlib.Path(__file__).resolve().parent / "sample_results.json"
sys.path[:0] = [str(BENCH / "scripts"), str(BENCH)]

import bench_results  # noqa: E402
import readme_tables  # noqa: E402

HAVE_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None
RUNG = {"id": "L4", "name": "float4", "changed": "16-byte loads", "op": "layer_norm", "direction": "forward", "dtype": "f32",
        "shape": [65536, 1024], "layout": "", "variant": "", "us": 226.2, "bytes": 537403392, "share_of_copy": 0.55,
        "share_of_same_size_copy": 0.57, "registers": "40", "shared_bytes": "256", "occupancy_percent": "75"}
KERNEL = {"op": "rms_norm", "direction": "forward", "dtype": "f32", "variant": "", "flops_per_element": 4.0,
          "bytes_per_element": 8.0, "flops_per_byte": 0.5, "bound_by": "memory"}


class ResultsTest(unittest.TestCase):
    def test_the_sample_has_the_schema(self):
        self.assertEqual(bench_results.check(bench_results.read(SAMPLE)), [])

    def test_committed_results_have_the_schema(self):
        path = BENCH / "results/h200.json"
        if path.exists():
            self.assertEqual(bench_results.check(bench_results.read(path)), [])

    def test_faults_are_named(self):
        report = bench_results.read(SAMPLE)
        del report["copy_gbs"]
        report["rows"][0]["extra"] = 1
        report["rows"].append(dict(report["rows"][1]))
        faults = "\n".join(bench_results.check(report))
        self.assertIn("no 'copy_gbs'", faults)
        self.assertIn("row 0 has the fields", faults)
        self.assertIn("two rows measure the same thing", faults)

    def test_a_written_file_reads_back(self):
        report = bench_results.read(SAMPLE)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "results.json"
            bench_results.write(path, report)
            self.assertEqual(bench_results.read(path), report)
            self.assertEqual(os.listdir(folder), ["results.json"])

    def test_merging_replaces_the_same_measurement_only(self):
        report = bench_results.read(SAMPLE)
        count = len(report["rows"])
        case = report["rows"][0]
        bench_results.merge(report, bench_results.measured_row(case, "torch", 800.0, 400.0, 1000.0))
        self.assertEqual(len(report["rows"]), count)
        self.assertEqual(report["rows"][1]["us"], 800.0)
        self.assertEqual(report["rows"][1]["share_of_same_size_copy"], 0.5)
        bench_results.merge(report, bench_results.measured_row(case, "liger", 800.0, 400.0, 1000.0))
        self.assertEqual(len(report["rows"]), count + 1)

    def test_cases_are_named_as_normbench_names_them(self):
        rows = bench_results.read(SAMPLE)["rows"]
        self.assertEqual(bench_results.case_name(rows[0]), "rms_norm/forward/f32/65536x1024")
        self.assertEqual(bench_results.case_name(rows[-1]), "batch_norm/forward/bf16/64x64x112x112/weight_f32/nchw")

    def test_a_file_that_is_no_result_is_refused(self):
        with self.assertRaises(ValueError):
            bench_results.read("/nowhere/results.json")


class TablesTest(unittest.TestCase):
    def setUp(self):
        self.report = bench_results.read(SAMPLE)

    def test_the_summary_counts_large_cases_and_names_the_gain(self):
        text = readme_tables.summary(self.report)
        self.assertIn("commit 0123456789ab;", text)
        self.assertIn("| RMSNorm | forward | f32 | 2 | 0.95 | 0.90 | 1.50x to 1.50x, median 1.50x |", text)
        self.assertIn("| BatchNorm | forward | bf16 | 1 | 0.83 | 0.83 | 2.00x to 2.00x, median 2.00x |", text)
        self.assertIn("Of 2 cases that another library was timed on, normd is the fastest, or within 2 % of it, in 2.", text)

    def test_faster_libraries_are_listed(self):
        self.assertEqual(readme_tables.slower(self.report), "None of 2 cases.\n")
        self.report["rows"][1]["us"] = 595.0  # within 2 %
        self.assertEqual(readme_tables.slower(self.report), "None of 2 cases.\n")
        self.report["rows"][1]["us"] = 500.0
        self.assertIn("| rms_norm/forward/f32/65536x1024 | 600.0 us, 0.90 | PyTorch 500.0 us, 0.60 |",
                      readme_tables.slower(self.report))

    def test_every_case_has_a_row_with_its_best_peer(self):
        text = readme_tables.detail(self.report, ("rms_norm",), ("",))
        self.assertIn("| RMSNorm | forward | f32 | 65536x1024 |  | 600.0 us, 0.90 | 895 | PyTorch 900.0 us, 0.60 |", text)
        self.assertIn("| RMSNorm | forward | f32 | 4096x2048 |  | 75.5 us, 0.95 | 889 |  |", text)
        self.assertNotIn("BatchNorm", text)

    def test_small_calls_stand_beside_an_empty_kernel(self):
        self.assertIn("| RMSNorm | bf16 | 1x8192 | 2.25 | 0.50 |  |", readme_tables.graph(self.report))

    def test_the_ladder_lists_rungs(self):
        text = readme_tables.ladder({"rungs": [RUNG]})
        self.assertIn("| LayerNorm forward 65536x1024 | L4 | float4 | 226.2 | 2376 | 0.57 | 40 | 256 | 75 | 16-byte loads |",
                      text)

    def test_check_fails_until_the_tables_are_written(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            root = pathlib.Path(folder)
            (root / "kernels/bench/results").mkdir(parents=True)
            (root / "kernels/bench/results/h200.json").write_text(SAMPLE.read_text())
            (root / "README.md").write_text("before\n<!-- results: summary -->\nold\n<!-- end of results -->\nafter\n")
            self.assertEqual(readme_tables.main(["--check", folder]), 1)
            self.assertEqual(readme_tables.main([folder]), 0)
            self.assertEqual(readme_tables.main(["--check", folder]), 0)
            text = (root / "README.md").read_text()
            self.assertRegex(text, re.compile(r"^before\n<!--.*RMSNorm.*-->\nafter\n$", re.DOTALL))


class PeersTest(unittest.TestCase):
    def test_options_and_libraries(self):
        peers = importlib.import_module("normbench_peers")
        options = peers.parse(["--json", "x.json", "--limit", "10", "--filter", "a", "--filter", "b"])
        self.assertEqual((options.json, options.limit, options.filter), ("x.json", 10.0, ["a", "b"]))
        self.assertEqual(options.impl.split(","), list(peers.IMPLS))

    def test_processes_share_out_every_case_by_shape(self):
        peers = importlib.import_module("normbench_peers")
        cases = bench_results.read(SAMPLE)["rows"]
        parts = [peers.part_of(cases, part, 3) for part in range(3)]
        self.assertEqual(sorted(index for part in parts for index in part), list(range(len(cases))))
        shapes = [{tuple(cases[index]["shape"]) for index in part} for part in parts]
        self.assertFalse(shapes[0] & shapes[1] or shapes[0] & shapes[2] or shapes[1] & shapes[2])

    def test_lines_of_a_process_that_died_still_count(self):
        peers = importlib.import_module("normbench_peers")
        report = bench_results.read(SAMPLE)
        cases = report["rows"][:3]
        told = [{"began": 1.0}, {"copy_gbs": 900.0}, {"case": 0, "us": 700.0, "copy_us": 350.0},
                {"case": 1, "skipped": "out of time"}]
        times, missing = peers.merge_lines(told, "quack", cases, report)
        self.assertEqual(times, 1)
        self.assertEqual(report["rows"][-1]["impl"], "quack")
        self.assertEqual(report["copy_gbs"], 1000.0)
        self.assertEqual(missing["out of time"], [bench_results.case_name(cases[1])])
        self.assertEqual(missing["its process ended before"], [bench_results.case_name(cases[2])])

    def test_accuracy_says_what_it_needs(self):
        if importlib.util.find_spec("torch") is not None:
            self.skipTest("PyTorch is here")
        accuracy = importlib.import_module("normbench_accuracy")
        with self.assertRaisesRegex(SystemExit, "PyTorch is needed"):
            accuracy.main(["manifest.json"])


class PlotTest(unittest.TestCase):
    def setUp(self):
        self.plot = importlib.import_module("normbench_plot")

    @unittest.skipUnless(HAVE_MATPLOTLIB, "matplotlib is not installed")
    def test_result_ladder_and_roofline_files_become_pictures(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            ladder, roofline = pathlib.Path(folder) / "ladder.json", pathlib.Path(folder) / "roofline.json"
            ladder.write_text(json.dumps({"device": "A card", "rungs": [RUNG]}))
            roofline.write_text(json.dumps({"device": "A card", "copy_gbs": 1000.0, "f32_peak_tflops": 20.0,
                                            "ridge_flops_per_byte": 20.0, "kernels": [KERNEL]}))
            out = pathlib.Path(folder) / "plots"
            self.assertEqual(self.plot.main([str(SAMPLE), str(ladder), str(roofline), "--out", str(out)]), 0)
            names = {path.name for path in out.iterdir()}
            self.assertEqual(names, {"rms_norm_forward_f32.svg", "batch_norm_forward_bf16.svg", "sweep_rms_norm.svg",
                                     "sweep_batch_norm.svg", "ladder.svg", "roofline.svg"})
            bars = (out / "rms_norm_forward_f32.svg").read_text()
            self.assertTrue(bars.lstrip().startswith("<?xml"))
            self.assertIn("65536x1024", bars)

    def test_a_missing_file_is_named(self):
        with self.assertRaisesRegex(SystemExit, "/nowhere.json"):
            self.plot.main(["/nowhere.json", "--out", "/tmp/never"])


if __name__ == "__main__":
    if not HAVE_MATPLOTLIB:
        print("bench_scripts_test: matplotlib is not installed: pictures are not tested")
    unittest.main(argv=sys.argv[:1], verbosity=1)
