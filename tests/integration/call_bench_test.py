#!/usr/bin/env python3
"""norm_call_bench and what bars.py makes of it, against normd and, where it is installed, the Triton Inference Server.

Usage: call_bench_test.py ROOT NORMD NORM_CALL_BENCH DESCRIPTORS
"""

import argparse
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import unittest

try:
    import google.protobuf  # noqa: F401  call_messages.py needs it
    import numpy
except ImportError as missing:
    print(f"call_bench_test.py: SKIPPED: {missing}")
    sys.exit(0)

ROOT, NORMD, CALL_BENCH, DESCRIPTORS = (pathlib.Path(argument).resolve() for argument in sys.argv[1:5])
sys.path.insert(0, str(ROOT / "client/normctl/scripts"))

import bars  # noqa: E402
import call_messages  # noqa: E402

OPTIONS = argparse.Namespace(triton=[str(CALL_BENCH), str(DESCRIPTORS)], warm_up=0, seconds=0.2, device="cpu", server_cpus=None,
                             client_cpus=None)
SMALL = (3, 2, 2, 1)  # rows, connections, calls in flight on each, share of the seconds
MISSING = [name for name in ("pytriton", "torch", "tritonclient") if importlib.util.find_spec(name) is None]
if MISSING:
    print(f"call_bench_test.py: the tests with Triton are SKIPPED: no module {', '.join(MISSING)}")


class CheckTest(unittest.TestCase):
    def test_values_are_those_of_bf16(self):
        self.assertEqual(call_messages.values(numpy.array([0x3F80, 0xC040, 0x3F00], numpy.uint16)).tolist(), [1.0, -3.0, 0.5])

    def test_one_place_off_passes_and_two_do_not(self):
        x = numpy.array([[0, 0x3F80]], numpy.uint16)  # 0 and 1: their RMSNorm is 0 and the square root of 2
        y = numpy.array([[0, 0x3FB5]], numpy.uint16)  # 1.4140625
        call_messages.check(x, y)
        y[0, 1] += 1
        call_messages.check(x, y)
        y[0, 1] += 1
        with self.assertRaisesRegex(ValueError, r"y: 1 of 2 values wrong, the first at \(0, 1\): 1.4296875, expected 1.41421"):
            call_messages.check(x, y)

    def test_what_is_not_a_number_does_not_pass(self):
        x = numpy.full((1, 2), 0x3F80, numpy.uint16)
        with self.assertRaises(ValueError):
            call_messages.check(x, numpy.array([[0x3F80, 0x7FC0]], numpy.uint16))


class NormdTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        serving = bars.serving([str(NORMD), "--device=cpu", "--metrics_listen=127.0.0.1:0"], cls.folder.name, "--port_file")
        cls.address = serving.__enter__()["grpc"]
        cls.addClassCleanup(serving.__exit__, None, None, None)

    def call(self, *flags):
        message = pathlib.Path(self.folder.name) / "message"
        message.write_bytes(call_messages.NormV1(DESCRIPTORS).encode(call_messages.draw(2, 64)))
        return subprocess.run([str(CALL_BENCH), f"--server={self.address}", f"--message={message}", "--warm_up=0", "--duration=0.1",
                               *flags], capture_output=True, text=True)

    def test_a_load_is_checked_and_measured(self):
        run = bars.call_bench(OPTIONS, self.address, call_messages.NormV1(DESCRIPTORS), SMALL, self.folder.name)
        report = run["report"]
        self.assertGreater(report["completed"], 0)
        self.assertIn("--connections=2 --in_flight=2", run["command"])
        # Messages of 24 KiB and little more, both ways.
        self.assertAlmostEqual(report["gb_per_second"] / report["requests_per_second"], 2 * 3 * 8192 / 1e9, delta=300 / 1e9)
        self.assertLessEqual(report["latency_us"]["p50"], report["latency_us"]["p99"])

    def test_the_echo_is_measured_too(self):
        run = bars.call_bench(OPTIONS, self.address, call_messages.EchoV1(DESCRIPTORS), SMALL, self.folder.name)
        self.assertGreater(run["report"]["completed"], 0)

    def test_a_load_with_failures_has_no_figures(self):
        with tempfile.NamedTemporaryFile("w", suffix=".sh", delete=False) as program:
            self.addCleanup(pathlib.Path(program.name).unlink)
            program.write("#!/bin/sh\necho '{\"failed\": 3, \"first_error\": \"too busy\", \"completed\": 9}'\n")
        pathlib.Path(program.name).chmod(0o755)
        options = argparse.Namespace(**vars(OPTIONS) | {"triton": [program.name, str(DESCRIPTORS)]})
        run = bars.call_bench(options, self.address, call_messages.NormV1(DESCRIPTORS), SMALL, self.folder.name)
        self.assertEqual(run["error"], "3 calls failed: too busy")

    def test_a_wrong_answer_has_no_figures(self):
        messages = call_messages.NormV1(DESCRIPTORS)
        messages.METHOD = call_messages.EchoV1.METHOD  # answers x, where RMSNorm of x is expected
        messages.check = lambda x, message: call_messages.check(x, x)
        run = bars.call_bench(OPTIONS, self.address, messages, SMALL, self.folder.name)
        self.assertNotIn("report", run)
        self.assertIn("12288 of 12288 values wrong, the first at (0, 0)", run["error"])

    def test_an_echo_of_other_bytes_is_wrong(self):
        echo = call_messages.EchoV1(DESCRIPTORS)
        with self.assertRaises(ValueError):
            echo.check(call_messages.draw(1, 8), echo.encode(call_messages.draw(1, 8))[:-1])

    def test_a_method_that_is_not_there_is_an_error(self):
        done = self.call("--method=/norm.v1.NormalizationService/None")
        self.assertEqual(done.returncode, 1)
        self.assertIn("UNIMPLEMENTED", done.stderr)

    def test_a_response_that_is_too_short_is_an_error(self):
        done = self.call("--response_bytes=1000")
        self.assertEqual(done.returncode, 1)
        self.assertIn("response: at least 1000 bytes expected, got ", done.stderr)

    def test_a_message_that_is_not_there_is_an_error(self):
        done = self.call("--message=/nowhere/message")
        self.assertEqual(done.returncode, 1)
        self.assertIn("/nowhere/message", done.stderr)


class TritonTest(unittest.TestCase):
    def test_without_the_package_that_part_is_skipped(self):
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder) / "server.py"
            script.write_text(f"import sys; sys.exit({bars.TRITON_NOT_FOUND})\n")
            real, bars.TRITON_SERVER = bars.TRITON_SERVER, script
            self.addCleanup(setattr, bars, "TRITON_SERVER", real)
            self.assertEqual(bars.beside_triton(OPTIONS, "127.0.0.1:1", folder), {"skipped": "not on this machine"})
            script.write_text("import sys; sys.exit(1)\n")
            with self.assertRaises(bars.NotServing):
                bars.beside_triton(OPTIONS, "127.0.0.1:1", folder)

    @unittest.skipIf(MISSING, "no Triton")
    def test_it_answers_what_float64_says(self):
        command = [sys.executable, str(bars.TRITON_SERVER), "--device=cpu", "--instances=1"]
        with tempfile.TemporaryDirectory() as folder, bars.serving(command, folder, "--port-file") as ports:
            run = bars.call_bench(OPTIONS, ports["grpc"], call_messages.KServeV2(), SMALL, folder)
            self.assertGreater(run["report"]["completed"], 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
