"""tests/run_gpu.sh in a bundle of stand-ins: what it runs, what it says, how it exits. Usage: run_gpu_test.py ROOT"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(sys.argv[1]).resolve()
PROGRAMS = ["a_cuda_test", "b_bench", "c_loss_test", "d_test", "norm_soak"]
# Lists two tests, or passes them; each call is noted with what it was told.
TEST_PROGRAM = """echo "$(basename "$0") $* shards=$GTEST_TOTAL_SHARDS separate=$NORM_TEST_SEPARATE_ALLOCATIONS" >>"$CALLS"
case "$*" in *--gtest_list_tests*) printf 'Suite.\\n  One\\n  Two\\n'; exit ;; esac
echo '[  PASSED  ] 1 test.'
"""
SANITIZER = """echo "sanitizer $*" >>"$CALLS"
while [ "$1" != bin/a_cuda_test ]; do shift; done
echo '========= ERROR SUMMARY: 0 errors'
exec "$@"
"""


class RunGpuTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.bundle = self.folder / "bundle"
        for name in ("bin", "tests/data", "deploy"):
            (self.bundle / name).mkdir(parents=True)
        shutil.copy(ROOT / "tests/run_gpu.sh", self.bundle / "tests")
        shutil.copy(ROOT / "deploy/with-normd.sh", self.bundle / "deploy")
        self.programs(PROGRAMS)
        for name in PROGRAMS:
            self.script(self.bundle / "bin" / name, TEST_PROGRAM)
        self.script(self.bundle / "bin/norm_soak", 'echo "norm_soak $*" >>"$CALLS"\necho "soak: 7 responses"\n')
        self.script(self.bundle / "bin/normctl", 'echo "normctl $*" >>"$CALLS"\necho "3 passed, 0 failed"\n')
        self.script(
            self.bundle / "bin/normd",
            'echo "normd $*" >>"$CALLS"\nfor flag; do case $flag in --port_file=*) ports=${flag#*=} ;; esac; done\n'
            "trap 'exit 0' TERM\nprintf 'grpc=127.0.0.1:1\\nmetrics=127.0.0.1:2\\n' >\"$ports\"\n"
            "while true; do sleep 0.05; done\n",
        )
        self.tools = self.folder / "tools"
        self.tools.mkdir()
        self.script(self.tools / "nvidia-smi", 'echo "GPU 0: stand-in"\n')
        self.script(self.tools / "compute-sanitizer", SANITIZER)

    def programs(self, names):
        (self.bundle / "tests/gpu_programs.txt").write_text("".join(name + "\n" for name in names))

    def script(self, path, text):
        path.write_text("#!/bin/bash\n" + text)
        path.chmod(0o755)

    def run_gpu(self, *arguments, **environment):
        """Exit status, output and the calls of the stand-ins."""
        calls = self.folder / "calls"
        calls.write_text("")
        ended = subprocess.run(
            [self.bundle / "tests/run_gpu.sh", *arguments],
            cwd=self.folder,
            env={
                **os.environ,
                "PATH": f"{self.tools}:{os.environ['PATH']}",
                "CALLS": str(calls),
                "LOG_DIR": "the-logs",
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
        )
        return ended.returncode, ended.stdout, calls.read_text().splitlines()

    def row(self, output, name):
        rows = [line for line in output.splitlines() if line.split()[:1] == [name] and line[44:45] == " "]
        self.assertEqual(len(rows), 1, output)
        return rows[0]

    def test_runs_every_part_and_says_so(self):
        status, output, calls = self.run_gpu("full", SOAK_SECONDS="9")
        self.assertEqual(status, 0, output)
        tools = ("memcheck", "racecheck", "initcheck", "synccheck")
        names = ["a_cuda_test", "c_loss_test", "d_test", "real_inputs", "norm_soak", *(f"a_cuda_test.{t}" for t in tools)]
        for name in names:
            self.assertIn(" ok ", self.row(output, name))
            self.assertTrue((self.folder / "the-logs" / f"{name}.log").exists())
        self.assertEqual(output.splitlines()[-1], f"{len(names)} passed, 0 failed")
        self.assertIn("soak: 7 responses", self.row(output, "norm_soak"))
        self.assertIn("3 passed, 0 failed", self.row(output, "real_inputs"))
        self.assertIn("2 tests passed, 0 errors", self.row(output, "a_cuda_test.memcheck"))
        self.assertIn("norm_soak --server=127.0.0.1:1 --metrics=127.0.0.1:2 --seconds=9", calls)
        for tool in tools:
            # Two tests: no more than two processes.
            runs = [call for call in calls if call.startswith("sanitizer") and tool in call.split()]
            self.assertEqual(len(runs), min(2, len(os.sched_getaffinity(0))))
        separate = [call for call in calls if call.startswith("a_cuda_test") and call.endswith("separate=1")]
        self.assertEqual(len(separate), 4 * min(2, len(os.sched_getaffinity(0))))
        self.assertFalse([call for call in calls if call.startswith("b_bench")])

    def test_keeps_to_the_cores_it_is_given(self):
        one = str(min(os.sched_getaffinity(0)))
        script = self.bundle / "tests/run_gpu.sh"
        calls = self.folder / "calls"
        subprocess.run(
            ["taskset", "-c", one, script, "--sharded", "bin/d_test"],
            cwd=self.bundle,
            env={**os.environ, "CALLS": str(calls)},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        self.assertEqual(calls.read_text(), "d_test  shards=1 separate=\n")

    def test_one_failure_fails_the_whole_and_the_rest_runs(self):
        self.script(self.bundle / "bin/d_test", "echo 'd_test.cc:7: Failure'\nexit 1\n")
        status, output, _ = self.run_gpu("quick")
        self.assertEqual(status, 1)
        self.assertIn("FAILED", self.row(output, "d_test"))
        self.assertIn("d_test.cc:7: Failure", output)
        self.assertIn(" ok ", self.row(output, "a_cuda_test.racecheck"))
        self.assertEqual(output.splitlines()[-1], "6 passed, 1 failed")

    def test_a_soak_that_fails_and_a_server_that_does_not_start(self):
        self.script(self.bundle / "bin/norm_soak", "exit 3\n")
        status, output, _ = self.run_gpu("quick")
        self.assertEqual(status, 1)
        self.assertIn("exit 3", self.row(output, "norm_soak"))
        self.script(self.bundle / "bin/normd", "echo no device\nexit 4\n")
        status, output, _ = self.run_gpu("quick")
        self.assertEqual(status, 1)
        self.assertIn("normd: no device", output)
        self.assertEqual(output.splitlines()[-1], "5 passed, 2 failed")

    def test_a_sanitizer_past_its_limit_is_ended_with_all_its_processes(self):
        pids = self.folder / "pids"
        self.script(self.tools / "compute-sanitizer", f"echo $$ >>{pids}\nsleep 1000 & echo $! >>{pids}\nwait\n")
        status, output, _ = self.run_gpu("quick", SANITIZER_LIMIT="1")
        self.assertEqual(status, 1)
        self.assertIn("timed out after 1 s", self.row(output, "a_cuda_test.memcheck"))
        self.assertEqual(output.splitlines()[-1], "5 passed, 2 failed")
        left = [int(pid) for pid in pids.read_text().split()]
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and any(running(pid) for pid in left):
            time.sleep(0.05)
        self.assertEqual([pid for pid in left if running(pid)], [])

    def test_a_filter_is_taken_and_one_without_tests_runs_nothing(self):
        _, _, calls = self.run_gpu("quick", SANITIZER_FILTER="Only.This")
        self.assertTrue(any("bin/a_cuda_test --gtest_filter=Only.This" in call for call in calls), calls)
        self.script(self.bundle / "bin/a_cuda_test", "case \"$*\" in *list*) ;; *) echo '[  PASSED  ] 1 test.' ;; esac\n")
        status, output, calls = self.run_gpu("quick", SANITIZER_FILTER="No.Such")
        self.assertEqual((status, [call for call in calls if call.startswith("sanitizer")]), (0, []), output)

    def test_tests_that_cannot_be_listed_are_a_failure(self):
        self.script(self.bundle / "bin/a_cuda_test", 'case "$*" in *list*) exit 127 ;; esac\n')
        status, output, _ = self.run_gpu("quick")
        self.assertEqual(status, 1)
        self.assertIn("FAILED", self.row(output, "a_cuda_test.memcheck"))

    def test_programs_that_skip_everything_are_failures(self):
        self.script(self.bundle / "bin/d_test", "echo '[  SKIPPED ] every test of this program: no image for this device'\n")
        status, output, _ = self.run_gpu("quick")
        self.assertEqual(status, 1)
        self.assertIn("no image for this device", output)
        self.assertIn("FAILED", self.row(output, "d_test"))

    def test_no_gpu_no_programs_no_such_mode(self):
        self.assertEqual(self.run_gpu("fast")[0], 2)
        self.programs([])
        status, output, _ = self.run_gpu()
        self.assertEqual(status, 1)
        self.assertIn("names no program", output)
        self.script(self.tools / "nvidia-smi", "exit 9\n")
        status, output, calls = self.run_gpu()
        self.assertEqual((status, calls), (1, []))
        self.assertIn("no NVIDIA GPU here", output)


def running(pid):
    """Not of one that has ended and is unreaped."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
