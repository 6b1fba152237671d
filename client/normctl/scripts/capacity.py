#!/usr/bin/env python3
"""How many replicas a load needs, from what one replica was measured to carry.

    capacity.py --load 20000x64KiB --load 50x128MiB RESULT.json...
    capacity.py --page [--check] [ROOT]      writes the tables of deploy/capacity.md from client/normctl/results

RESULT.json is what `normctl bench --json` (closed loops; of a sweep its peak) or bars.py wrote. A load is requests/s times the
tensor bytes of one request and its response together. deploy/capacity.md explains the formula.
"""

import argparse
import json
import math
import pathlib
import re
import sys

UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
REGION = re.compile(r"(<!-- capacity tables -->\n).*?(<!-- end of capacity tables -->)", re.DOTALL)
RESULTS = "client/normctl/results"
# Loads of the page: requests/s by bytes both ways.
EXAMPLES = ([(10000, 64 << 10)], [(100000, 64 << 10)], [(20000, 2 << 20)], [(100, 128 << 20)],
            [(20000, 64 << 10), (1000, 2 << 20), (20, 128 << 20)])


def closed_loops(document):
    """The reports of closed loops without a flood in what bench or bars.py wrote."""
    if "normd" in document:
        reports = [run["report"] for run in document["normd"].values() if "report" in run]
    elif "peak" in document:
        reports = [document["peak"] | {"options": document["options"]}]
    else:
        reports = [document]
    return [report for report in reports
            if report["options"]["rate"] is None and report["options"]["flood"] is None and report["completed"] > 0]


class Replica:
    """What one replica carries: seconds of it that a request of some size takes at saturation."""

    def __init__(self, documents):
        best = {}
        for document in documents:
            for report in closed_loops(document):
                size = round((report["bytes_sent"] + report["bytes_received"]) / report["completed"])
                best[size] = max(best.get(size, 0), report["requests_per_second"])
        if not best:
            raise ValueError("no closed loop with completed requests is in the results")
        self.points = sorted((size, 1 / rate) for size, rate in best.items())

    def cost(self, size):
        """Between measured sizes on the line through their costs; below them the least cost, above them in proportion."""
        smallest, largest = self.points[0], self.points[-1]
        if size <= smallest[0]:
            return smallest[1]
        if size >= largest[0]:
            return largest[1] * size / largest[0]
        for (low, low_cost), (high, high_cost) in zip(self.points, self.points[1:]):
            if size <= high:
                return low_cost + (high_cost - low_cost) * (size - low) / (high - low)
        raise AssertionError("sizes are sorted")

    def utilization(self, loads):
        """Of one replica that got all of it; over 1 where it cannot carry them."""
        return sum(rate * self.cost(size) for rate, size in loads)


def replicas(utilization, target, spare):
    """`target`: of each replica that is there. `spare`: how many may be away at once."""
    return max(1, math.ceil(utilization / target - 1e-9)) + spare


def carried_within(sweep, p99_us):
    """The share of the peak up to which every measured rate was carried whole and with that p99."""
    peak = sweep["peak"]["requests_per_second"]
    share = 0
    for point in sorted(sweep["points"], key=lambda point: point["rate"]):
        if point["failed"] or point["not_sent"] or point["latency_us"]["p99"] > p99_us:
            break
        share = point["rate"] / peak
    return share


def parse_load(text):
    match = re.fullmatch(r"([0-9.]+)x([0-9.]+)(B|KiB|MiB|GiB)?", text)
    if not match:
        raise argparse.ArgumentTypeError(f"'{text}' is no load, such as 20000x64KiB")
    return float(match.group(1)), float(match.group(2)) * UNITS[match.group(3) or ""]


def name_bytes(size):
    for unit in ("GiB", "MiB", "KiB"):
        if size >= UNITS[unit]:
            return f"{size / UNITS[unit]:g} {unit}"
    return f"{size:g} B"


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def page_tables(root):
    report = json.loads((root / RESULTS / "h200.json").read_text())
    sweep = json.loads((root / RESULTS / "h200_sweep.json").read_text())
    replica = Replica([report])
    measured = table(["bytes both ways", "requests/s", "GB/s both ways", "of a replica's second, us"],
                     [[name_bytes(size), f"{1 / cost:,.0f}", f"{size / cost * 1e-9:.2f}", f"{cost * 1e6:,.1f}"]
                      for size, cost in replica.points])
    examples = []
    for loads in EXAMPLES:
        used = replica.utilization(loads)
        examples.append([" and ".join(f"{rate:,.0f}/s of {name_bytes(size)}" for rate, size in loads), f"{used:.2f}",
                         str(replicas(used, 0.5, 0)), str(replicas(used, 0.5, 1))])
    needed = table(["load", "replicas' worth at saturation", "at half of it", "and one may be away"], examples)
    peak = sweep["peak"]["requests_per_second"]
    latency = table(["share of the peak", "requests/s", "p50 us", "p99 us", "not sent"],
                    [[f"{point['rate'] / peak:.2f}", f"{point['rate']:,.0f}", f"{point['latency_us']['p50']:,.0f}",
                      f"{point['latency_us']['p99']:,.0f}", str(point["not_sent"])] for point in sweep["points"]])
    return (f"{report['device']}, {report['cores']} cores for server and load together, {report['date']}, "
            f"commit {report['commit'][:12]}.\n\n{measured}\nWith it:\n\n{needed}\nLatency against load, {name_bytes(replica.points[0][0])} "
            f"requests, {peak:,.0f} requests/s at the peak:\n\n{latency}")


def write_page(root, check):
    page = root / "deploy" / "capacity.md"
    before = page.read_text()
    after = REGION.sub(lambda match: match.group(1) + page_tables(root) + match.group(2), before)
    if not check:
        page.write_text(after)
    elif before != after:
        print("deploy/capacity.md is not what client/normctl/results gives: run client/normctl/scripts/capacity.py --page")
        return 1
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", action="append", type=parse_load, default=[], help="requests/s x bytes both ways, several times")
    parser.add_argument("--utilization", type=float, default=0.5, help="of each replica that is there [0.5]")
    parser.add_argument("--p99-us", type=float, help="instead: the utilization up to which the --sweep kept this p99")
    parser.add_argument("--sweep", help="what `normctl bench --sweep --json` wrote")
    parser.add_argument("--spare", type=int, default=1, help="replicas that may be away at once [1]")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("files", nargs="*")
    arguments = parser.parse_args()
    if arguments.page:
        root = pathlib.Path(arguments.files[0]) if arguments.files else pathlib.Path(__file__).resolve().parents[3]
        return write_page(root, arguments.check)
    if not arguments.load or not arguments.files:
        parser.error("--load and a result file are needed")
    target = arguments.utilization
    if arguments.p99_us is not None:
        if arguments.sweep is None:
            parser.error("--p99-us needs --sweep")
        target = carried_within(json.loads(pathlib.Path(arguments.sweep).read_text()), arguments.p99_us)
        if target == 0:
            parser.error(f"no rate of the sweep kept a p99 of {arguments.p99_us:g} us: a replica is too slow for it at any load")
    if not 0 < target <= 1:
        parser.error(f"--utilization {target:g} is outside (0, 1]")
    replica = Replica([json.loads(pathlib.Path(name).read_text()) for name in arguments.files])
    used = replica.utilization(arguments.load)
    print(json.dumps({"utilization_of_one": round(used, 4), "target": round(target, 4),
                      "replicas": replicas(used, target, arguments.spare), "spare": arguments.spare}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
