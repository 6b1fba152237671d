"""client/normctl/scripts/capacity.py: numbers against computations by hand. Usage: capacity_test.py ROOT"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv[1])
SCRIPT = ROOT / "client" / "normctl" / "scripts" / "capacity.py"
sys.path.insert(0, str(SCRIPT.parent))
import capacity  # noqa: E402


def closed_loop(size, requests_per_second, **options):
    return {"options": {"rate": None, "flood": None} | options, "bytes_sent": size * 10 // 2, "bytes_received": size * 10 // 2,
            "completed": 10, "requests_per_second": requests_per_second}


class CapacityTest(unittest.TestCase):
    def setUp(self):
        # 1 KiB: 1000/s and less; 3 KiB: 500/s. Open loops and floods say nothing about what is possible.
        self.documents = [closed_loop(1024, 800), closed_loop(1024, 1000), closed_loop(3072, 500),
                          closed_loop(1024, 5000, rate=5000), closed_loop(1024, 7000, flood={"connections": 1})]
        self.replica = capacity.Replica(self.documents)

    def test_costs_are_the_best_of_each_size_and_lines_between(self):
        self.assertEqual(self.replica.points, [(1024, 0.001), (3072, 0.002)])
        self.assertAlmostEqual(self.replica.cost(2048), 0.0015)
        self.assertEqual(self.replica.cost(10), 0.001)
        self.assertEqual(self.replica.cost(6144), 0.004)

    def test_loads_add_up_and_replicas_are_whole(self):
        self.assertAlmostEqual(self.replica.utilization([(1000, 1024)]), 1)
        self.assertAlmostEqual(self.replica.utilization([(1000, 1024), (100, 6144)]), 1.4)
        self.assertEqual(capacity.replicas(1.4, 0.5, 1), 4)  # ceil(2.8) + 1
        self.assertEqual(capacity.replicas(1.0, 0.5, 0), 2)  # exactly two
        self.assertEqual(capacity.replicas(0.01, 0.5, 0), 1)

    def test_a_sweep_gives_the_share_that_keeps_a_p99(self):
        def point(rate, p99, not_sent=0):
            return {"rate": rate, "failed": 0, "not_sent": not_sent, "latency_us": {"p99": p99}}

        sweep = {"peak": {"requests_per_second": 1000}, "points": [point(900, 50), point(100, 10), point(500, 40), point(700, 60)]}
        self.assertEqual(capacity.carried_within(sweep, 40), 0.5)
        self.assertEqual(capacity.carried_within(sweep, 45), 0.5)  # 900/s was better than 700/s by luck
        self.assertEqual(capacity.carried_within(sweep, 5), 0)
        sweep["points"][2]["not_sent"] = 1
        self.assertEqual(capacity.carried_within(sweep, 40), 0.1)

    def test_results_of_bars_and_of_sweeps_are_read(self):
        bars = {"normd": {"small": {"report": closed_loop(1024, 1000)}, "broken": {"error": "?"}}}
        sweep = {"options": {"rate": None, "flood": None}, "peak": closed_loop(3072, 500)}
        self.assertEqual(capacity.Replica([bars, sweep]).points, self.replica.points)
        with self.assertRaises(ValueError):
            capacity.Replica([{"normd": {}}])

    def run_script(self, *arguments):
        return subprocess.run([sys.executable, "-B", str(SCRIPT), *arguments], capture_output=True, text=True)

    def test_the_command_line(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "bench.json"
            file.write_text(json.dumps(closed_loop(2048, 1000)))
            run = self.run_script("--load", "1400x2KiB", "--load", "100x4096", str(file))
            self.assertEqual(json.loads(run.stdout), {"utilization_of_one": 1.6, "target": 0.5, "replicas": 5, "spare": 1})
            for wrong in (["--load", "10", str(file)], ["--load", "1x1KiB"], [str(file)],
                          ["--load", "1x1KiB", "--utilization", "0", str(file)], ["--load", "1x1KiB", "--p99-us", "5", str(file)]):
                self.assertEqual(self.run_script(*wrong).returncode, 2, wrong)

    def test_the_page_is_what_the_results_give(self):
        run = self.run_script("--page", "--check", str(ROOT))
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
