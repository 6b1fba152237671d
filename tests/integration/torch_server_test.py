#!/usr/bin/env python3
"""The peer of `normctl bench` answers what normd answers. Usage: torch_server_test.py ROOT NORMCTL DESCRIPTORS"""

import json
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

try:
    import grpc  # noqa: F401  torch_server.py needs it
    import numpy
    import torch  # noqa: F401
except ImportError as missing:
    print(f"torch_server_test.py: SKIPPED: {missing}")
    sys.exit(0)

ROOT, NORMCTL, DESCRIPTORS = (pathlib.Path(argument).resolve() for argument in sys.argv[1:4])
INPUTS = ROOT / "tests/data/embeddings.safetensors"


def read_input(name):
    content = INPUTS.read_bytes()
    header = int.from_bytes(content[:8], "little")
    entry = json.loads(content[8:8 + header])[name]
    begin, end = (8 + header + offset for offset in entry["data_offsets"])
    return numpy.frombuffer(content[begin:end], "<f4").reshape(entry["shape"]).astype("f8")


class TorchServerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        ports = pathlib.Path(cls.folder.name) / "ports"
        cls.server = subprocess.Popen([sys.executable, str(ROOT / "client/normctl/peers/torch_server.py"), "--descriptors",
                                       str(DESCRIPTORS), "--device", "cpu", "--listen", "127.0.0.1:0", "--port-file", str(ports)])
        while not ports.exists() and cls.server.poll() is None:
            time.sleep(0.02)
        cls.address = ports.read_text().strip().partition("=")[2]

    @classmethod
    def tearDownClass(cls):
        cls.server.terminate()
        cls.server.wait()
        cls.folder.cleanup()

    def normctl(self, *arguments):
        return subprocess.run([str(NORMCTL), *map(str, arguments), "--server", self.address], capture_output=True, text=True)

    def output_of(self, *arguments):
        out = pathlib.Path(self.folder.name) / "y.npy"
        done = self.normctl(*arguments, "--input", f"{INPUTS}:x", "--output", out)
        self.assertEqual(done.returncode, 0, done.stderr)
        return numpy.load(out)

    def test_layer_norm_is_that_of_float64(self):
        y = self.output_of("layernorm", "--weight", f"{INPUTS}:weight", "--bias", f"{INPUTS}:bias", "--eps", "1e-12")
        x = read_input("x")
        want = (x - x.mean(-1, keepdims=True)) / numpy.sqrt(x.var(-1, keepdims=True) + 1e-12)
        numpy.testing.assert_allclose(y, want * read_input("weight") + read_input("bias"), rtol=1e-5, atol=1e-5)

    def test_rms_norm_is_that_of_float64(self):
        y = self.output_of("rmsnorm", "--weight", f"{INPUTS}:weight", "--weight-offset", "1", "--eps", "1e-3")
        x = read_input("x")
        want = x / numpy.sqrt((x * x).mean(-1, keepdims=True) + 1e-3) * (read_input("weight") + 1)
        numpy.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)

    def test_bench_measures_it(self):
        done = self.normctl("bench", "--shape", "3x64", "--echo", "--warm-up", "0", "--duration", "0.2", "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertIn("PyTorch", report["server_version"])
        self.assertGreater(report["completed"], 0)
        self.assertEqual(report["failed"], 0)
        self.assertEqual(report["echo"]["failed"], 0)

    def test_what_it_does_not_do_is_refused(self):
        done = self.normctl("batchnorm", "--training", "--input", ROOT / "tests/data/digits_nchw.npy", "--layout", "nchw",
                            "--output", pathlib.Path(self.folder.name) / "y.npy")
        self.assertEqual(done.returncode, 1)
        self.assertIn("UNIMPLEMENTED", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
