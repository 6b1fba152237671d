"""The capacity model against the load generator, on a CPU replica: what it says of loads that are then run.

Usage: capacity_test.py NORMD NORMCTL. Times on a shared machine are printed and not asserted; what a load is made of, and that a replica
does not carry twenty times its capacity, are.
"""

import json
import math
import pathlib
import subprocess
import sys
import unittest

from replica_set import ReplicaSet

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client" / "normctl" / "scripts"))
import capacity  # noqa: E402

NORMD, NORMCTL = "", ""
SMALL, MIDDLE, LARGE = 16, 64, 256  # rows of 512 f32


def size(rows):
    return 2 * rows * 512 * 4


class CapacityTest(unittest.TestCase):
    def bench(self, server, rows, *flags):
        run = subprocess.run([NORMCTL, "bench", "--server", server, "--op", "layer_norm", "--shape", f"{rows}x512", "--dtype", "f32",
                              "--connections", "2", "--in-flight", "8", "--warm-up", "0.3", "--json", "-", *flags],
                             capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stderr)
        report = json.loads(run.stdout)
        self.assertEqual(report["failed"], 0)
        return report

    def test_predictions_beside_what_loads_do(self):
        with ReplicaSet(NORMD, NORMCTL, []) as replicas:
            server = replicas.replicas[0].address
            for replica in replicas.replicas[1:]:
                replica.stop()
            measured = [self.bench(server, rows, "--duration", "1.5") for rows in (SMALL, LARGE)]
            model = capacity.Replica(measured)
            self.assertEqual([point[0] for point in model.points], [size(SMALL), size(LARGE)])
            for report, rows in zip(measured, (SMALL, LARGE)):
                self.assertAlmostEqual(model.utilization([(report["requests_per_second"], size(rows))]), 1)

            predicted = 1 / model.cost(size(MIDDLE))
            reached = self.bench(server, MIDDLE, "--duration", "1.5")["requests_per_second"]
            print(f"saturation of {size(MIDDLE)} bytes: predicted {predicted:.0f}/s, reached {reached:.0f}/s, {reached / predicted:.2f}",
                  flush=True)
            for share in (0.25, 0.5, 0.75, 1.25):
                rate = round(share * predicted)
                report = self.bench(server, MIDDLE, "--rate", str(rate), "--duration", "1.5")
                self.assertLessEqual(abs(report["requests"] + report["not_sent"] - math.ceil(1.5 * rate)), 1)
                print(f"{model.utilization([(rate, size(MIDDLE))]):.2f} of it: {report['requests_per_second']:.0f} of {rate}/s, "
                      f"p99 {report['latency_us']['p99'] / 1e3:.1f} ms, {report['not_sent']} not sent", flush=True)

            beyond = 20 * predicted
            self.assertGreaterEqual(capacity.replicas(model.utilization([(beyond, size(MIDDLE))]), 0.5, 0), 40)
            report = self.bench(server, MIDDLE, "--rate", str(round(beyond)), "--duration", "0.5")
            self.assertGreater(report["not_sent"], 0)


if __name__ == "__main__":
    NORMD, NORMCTL = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1], verbosity=2)
