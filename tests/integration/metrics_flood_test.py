#!/usr/bin/env python3
"""Calls go on while /metrics is scraped ten times a second and while its port is flooded; what the flood takes is bounded.

Usage: metrics_flood_test.py NORMD NORMCTL
"""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

NORMD, NORMCTL = sys.argv[1:3]
SILENT = 400    # connections that never ask
SCRAPERS = 12   # threads that ask again and again
HTTP_THREADS = 9  # of the HTTP library: 8 for a connection each, and one that accepts
# A connection a thread, 20 accepted ones that wait for a thread, and one being accepted.
HTTP_CONNECTIONS = 29
LOAD_CONNECTIONS = 5  # and of its own questions to the server


class Load:
    """`normctl bench` beside the test; its report once it has ended."""

    def __init__(self, address, seconds):
        self.process = subprocess.Popen([NORMCTL, "bench", "--server", address, "--shape=4x64", "--dtype=f32", "--connections=4",
                                         "--in-flight=4", "--warm-up=0", f"--duration={seconds}", "--json=-"],
                                        stdout=subprocess.PIPE, text=True)

    def running(self):
        return self.process.poll() is None

    def report(self):
        output, _ = self.process.communicate()
        return json.loads(output)


class MetricsFloodTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        ports = pathlib.Path(folder.name) / "ports"
        self.normd = subprocess.Popen([NORMD, "--device=cpu", "--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0",
                                       "--log_level=error", f"--port_file={ports}"], stdout=subprocess.DEVNULL)
        self.addCleanup(self.normd.wait)
        self.addCleanup(self.normd.terminate)
        while not ports.exists():
            self.assertIsNone(self.normd.poll(), "normd ended before it was ready")
            time.sleep(0.01)
        self.ports = dict(line.split("=", 1) for line in ports.read_text().split())
        host, port = self.ports["metrics"].rsplit(":", 1)
        self.metrics = (host, int(port))
        self.files = self.count("fd")

    def scrape(self):
        with urllib.request.urlopen(f"http://{self.ports['metrics']}/metrics", timeout=60) as reply:
            return reply.read().decode()

    def value(self, text, series):
        return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(series + " "))

    def count(self, kind):
        return len(list((pathlib.Path("/proc") / str(self.normd.pid) / kind).iterdir()))

    def requests(self, text):
        return sum(float(line.split()[1]) for line in text.splitlines() if line.startswith("normd_requests_total{"))

    def test_ten_scrapes_a_second_see_calls_go_on(self):
        load = Load(self.ports["grpc"], 6)
        seen = []
        while load.running():
            text = self.scrape()
            seen.append((self.requests(text), self.value(text, "normd_connections")))
            time.sleep(0.1)
        report = load.report()
        self.assertEqual(report["errors"], {})
        self.assertGreater(len(seen), 5)
        counts = [count for count, _ in seen]
        self.assertEqual(counts, sorted(counts))
        # Four of the load; and the one that its own questions to the server may have.
        self.assertIn(max(connections for _, connections in seen), (4, 5))
        self.assertGreaterEqual(self.requests(self.scrape()), report["requests"])

    def http_threads(self):
        """How many threads have the niceness of the HTTP library's: 5 above the others."""
        nice = []
        for task in (pathlib.Path("/proc") / str(self.normd.pid) / "task").iterdir():
            with contextlib.suppress(ProcessLookupError):  # it has ended
                nice.append(os.getpriority(os.PRIO_PROCESS, int(task.name)))
        usual = min(nice)
        if usual == 19:
            self.skipTest("the tests run with the highest niceness: threads cannot be told apart by it")
        return nice.count(min(usual + 5, 19))

    def flooded(self):
        """Loads the server, and checks meanwhile what the flood takes of it."""
        load = Load(self.ports["grpc"], 2)
        most_files = 0
        while load.running():
            self.assertEqual(self.http_threads(), HTTP_THREADS)
            most_files = max(most_files, self.count("fd"))
            time.sleep(0.02)
        report = load.report()
        self.assertEqual(report["errors"], {})
        self.assertGreater(report["requests"], 0)
        self.assertLessEqual(most_files, self.files + HTTP_CONNECTIONS + LOAD_CONNECTIONS)
        print(f"beside the flood: {report['requests_per_second']:.0f} requests/s, files {self.files} to {most_files}", flush=True)

    def test_a_flood_of_scrapes_is_bounded_and_calls_go_on(self):
        stop = threading.Event()
        answered = [0] * SCRAPERS

        def flood(number):
            while not stop.is_set():
                self.scrape()
                answered[number] += 1

        scrapers = [threading.Thread(target=flood, args=[number]) for number in range(SCRAPERS)]
        for scraper in scrapers:
            scraper.start()
        before = sum(answered)
        self.flooded()
        during = sum(answered) - before
        stop.set()
        for scraper in scrapers:
            scraper.join()
        print(f"{during} scrapes meanwhile")
        self.assertGreater(during, SCRAPERS)

    def test_silent_connections_are_bounded_and_calls_go_on(self):
        silent = []
        for _ in range(SILENT):
            connection = socket.socket()
            self.addCleanup(connection.close)
            connection.setblocking(False)
            connection.connect_ex(self.metrics)
            silent.append(connection)
            if len(silent) == 1:
                self.scrape()  # one of them does not keep a scraper out
        self.flooded()
        for connection in silent:
            connection.close()
        self.assertIn("normd_ready 1", self.scrape())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
