#!/usr/bin/env python3
"""What recording metrics costs: small calls against two normd at once, one of them with --record_metrics=false.

Usage: metrics_overhead.py --normd PROGRAM --normctl PROGRAM [--device cuda|cpu] [--rounds N] [--seconds S] [--scrape HZ]
       [--load 'ARGUMENTS OF normctl bench'] [--json FILE] [--limit SHARE]

Both servers are loaded by the same load at the same time, round after round, so that whatever else the machine does meets both
alike. Printed are the medians over rounds of on / off: requests per second, and the server's processor time for a request; with
the interval that holds the median with 95 %.
--scrape also reads /metrics of the recording server that often while it is loaded, as Prometheus would. --limit: exit 1 when
the whole interval of the processor time lies above 1 + SHARE.
"""

import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from bars import bench

SMALL = "--shape 4x64 --dtype f32 --connections 8 --in-flight 8"


class Server:
    def __init__(self, arguments, folder, name):
        self.name = name
        ports = pathlib.Path(folder) / name
        self.process = subprocess.Popen([*arguments, "--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0", f"--port_file={ports}"],
                                        stdout=subprocess.DEVNULL)
        while not ports.exists():
            if self.process.poll() is not None:
                raise RuntimeError(f"{arguments[0]} ended with {self.process.returncode} before it was ready")
            time.sleep(0.02)
        self.addresses = dict(line.split("=", 1) for line in ports.read_text().split())

    def scrape(self):
        with urllib.request.urlopen(f"http://{self.addresses['metrics']}/metrics", timeout=10) as reply:
            return reply.read().decode()

    def cpu_seconds(self):
        return next(float(line.split()[1]) for line in self.scrape().splitlines() if line.startswith("process_cpu_seconds_total "))

    def stop(self):
        self.process.terminate()
        self.process.wait()


def measure(options, server, scrapes_per_second):
    """(requests per second, processor seconds of the server for a request, scrapes)."""
    stop = threading.Event()
    scrapes = 0

    def scraping():
        nonlocal scrapes
        while not stop.wait(1 / scrapes_per_second):
            server.scrape()
            scrapes += 1

    scraper = threading.Thread(target=scraping) if scrapes_per_second else None
    before = server.cpu_seconds()
    if scraper:
        scraper.start()
    run = bench(options.normctl, server.addresses["grpc"], f"{options.load} --warm-up 0 --duration {options.seconds:g}")
    stop.set()
    if scraper:
        scraper.join()
    if "error" in run:
        raise RuntimeError(run["error"])
    report = run["report"]
    if report["errors"]:
        raise RuntimeError(f"calls failed: {report['errors']}")
    return report["requests_per_second"], (server.cpu_seconds() - before) / report["requests"], scrapes


def median_interval(values):
    """Median, and the order statistics that enclose it with at least 95 % (binomial)."""
    values = sorted(values)
    n = len(values)
    below, chance = 0, 0.5 ** n
    tail = chance
    while below + 1 < n // 2 and tail + math.comb(n, below + 1) * 0.5 ** n <= 0.025:
        below += 1
        tail += math.comb(n, below) * 0.5 ** n
    return statistics.median(values), values[below], values[n - 1 - below]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--normd", required=True)
    parser.add_argument("--normctl", required=True)
    parser.add_argument("--device", default="cpu", choices=["cuda", "cpu"])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--scrape", type=float, default=0)
    parser.add_argument("--load", default=SMALL)
    parser.add_argument("--json")
    parser.add_argument("--limit", type=float)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        command = [options.normd, f"--device={options.device}"]
        servers = []
        try:
            servers.append(Server([*command], folder, "on"))
            servers.append(Server([*command, "--record_metrics=false"], folder, "off"))
            for server in servers:  # first touches of memory
                measure(options, server, 0)
            rounds = []
            for number in range(options.rounds):
                order = servers if number % 2 else servers[::-1]
                with concurrent.futures.ThreadPoolExecutor(2) as both:
                    measured = [both.submit(measure, options, server, options.scrape if server.name == "on" else 0) for server in order]
                    results = [one.result() for one in measured]
                rounds.append({server.name: {"requests_per_second": rate, "cpu_us": cpu * 1e6, "scrapes": scrapes}
                               for server, (rate, cpu, scrapes) in zip(order, results)})
        finally:
            for server in servers:
                server.stop()

    report = {"load": options.load, "seconds": options.seconds, "device": options.device, "cores": len(os.sched_getaffinity(0)),
              "scrapes_per_second": options.scrape, "rounds": rounds}
    for key, label in (("requests_per_second", "requests/s"), ("cpu_us", "processor time of the server, us/request")):
        middle, low, high = median_interval([r["on"][key] / r["off"][key] for r in rounds])
        report[key] = {"ratio": middle, "low": low, "high": high}
        on, off = (statistics.median(r[name][key] for r in rounds) for name in ("on", "off"))
        print(f"{label}: on {on:.5g}, off {off:.5g}; on/off {middle:.4f} [{low:.4f}, {high:.4f}] over {len(rounds)} rounds")
    if options.scrape:
        print(f"scrapes while loaded: {sum(r['on']['scrapes'] for r in rounds)}")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    if options.limit is not None and report["cpu_us"]["low"] > 1 + options.limit:
        print(f"recording costs more than {options.limit:.1%} of the processor time of a call")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
