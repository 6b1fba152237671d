"""Three replicas behind the client's own balancing, killed and restarted in turn under half load: no call fails.

Usage: replicas_test.py NORMD NORMCTL
"""

import pathlib
import socket
import struct
import subprocess
import sys
import threading
import unittest

from replica_set import ADDRESSES, Load, ReplicaSet, summary

NORMD, NORMCTL = "", ""
DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
# Longer than a client needs to hear NOT_SERVING.
DRAIN = ["--drain_delay=1s", "--drain_timeout=10s"]


class NameServer:
    """Answers every A query with `addresses`, and other queries with nothing. One name, one question a message."""

    def __init__(self, addresses):
        self.addresses = list(addresses)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._socket.sendto(b"", ("127.0.0.1", self.port))
        self._thread.join()
        self._socket.close()

    def _run(self):
        while True:
            query, sender = self._socket.recvfrom(4096)
            if not query:
                return
            end = 12
            while query[end]:
                end += 1 + query[end]
            question = query[12:end + 5]
            kind = struct.unpack(">H", question[-4:-2])[0]
            addresses = self.addresses if kind == 1 else []
            answers = b"".join(b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 1, 4) + socket.inet_aton(address) for address in addresses)
            header = query[:2] + struct.pack(">HHHHH", 0x8580, 1, len(addresses), 0, 0)
            self._socket.sendto(header + question + answers, sender)


class ReplicasTest(unittest.TestCase):
    def change_under_load(self, name, change, load):
        changed, reports = load.half_while(change)
        print(f"{name}: {summary(reports)}" + (f"; seconds to drain {changed}" if changed else ""), flush=True)
        for report in reports:
            self.assertEqual(report["failed"], 0, report["errors"])
        return reports

    def test_killed_in_turn(self):
        for transport in ("unary", "stream"):
            with self.subTest(transport), ReplicaSet(NORMD, NORMCTL, DRAIN) as replicas:
                load = Load(NORMCTL, replicas.addresses, attempts=8, transport=transport)
                self.change_under_load(f"killed, {transport}", replicas.kill_in_turn, load)

    def test_restarted_in_turn(self):
        for transport in ("unary", "stream"):
            with self.subTest(transport), ReplicaSet(NORMD, NORMCTL, DRAIN) as replicas:
                load = Load(NORMCTL, replicas.addresses, attempts=8, transport=transport)
                self.change_under_load(f"drained, {transport}", replicas.drain_in_turn, load)

    def test_behind_a_name(self):
        with ReplicaSet(NORMD, NORMCTL, DRAIN) as replicas, NameServer(ADDRESSES) as names:
            target = f"dns://127.0.0.1:{names.port}/normd.test:{replicas.port}"
            load = Load(NORMCTL, target, attempts=8)
            self.change_under_load("killed, dns", replicas.kill_in_turn, load)
            self.change_under_load("drained, dns", replicas.drain_in_turn, load)

    def test_a_name_that_changes(self):
        """A replica leaves and the name has another instead, as behind a headless service: calls find it."""
        with ReplicaSet(NORMD, NORMCTL, DRAIN) as replicas, NameServer(ADDRESSES[:2]) as names:
            target = f"dns://127.0.0.1:{names.port}/normd.test:{replicas.port}"

            def move(load):
                load.await_calls(replicas.replicas[0])
                names.addresses = list(ADDRESSES[1:])
                code, _ = replicas.replicas[0].drain()
                self.assertEqual(code, 0)
                load.await_calls(replicas.replicas[2])

            self.change_under_load("another answer of dns", move, Load(NORMCTL, target, attempts=8))

    def test_results_are_right_meanwhile(self):
        with ReplicaSet(NORMD, NORMCTL, DRAIN) as replicas:
            verified = []

            def verify(load):
                over = threading.Event()
                failures = []

                def keep_verifying():
                    while not over.is_set():
                        run = subprocess.run([NORMCTL, "verify", str(DATA / "manifest.json"), "--server", replicas.addresses,
                                              "--attempts", "8"], capture_output=True, text=True)
                        verified.append(run.returncode)
                        if run.returncode != 0:
                            failures.append(run.stdout + run.stderr)

                thread = threading.Thread(target=keep_verifying)
                thread.start()
                try:
                    replicas.kill_in_turn(load)
                    replicas.drain_in_turn(load)
                finally:
                    over.set()
                    thread.join()
                self.assertEqual(failures, [])

            self.change_under_load("verified meanwhile", verify, Load(NORMCTL, replicas.addresses, attempts=8))
            print(f"normctl verify ran {len(verified)} times, all right", flush=True)
            self.assertGreater(len(verified), 0)


if __name__ == "__main__":
    NORMD, NORMCTL = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1], verbosity=2)
