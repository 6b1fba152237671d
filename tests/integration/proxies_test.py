"""The shipped configurations of nginx and Envoy, really run over three replicas: large tensors, restarts under half load.

Usage: proxies_test.py NORMD NORMCTL. Exit status 77 when neither proxy is here (deploy/install-deps.sh --test installs both).
ENVOY names an Envoy binary; otherwise it is that of build/python, from tests/requirements.txt, or of the PATH.
"""

import array
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import unittest

from replica_set import Load, ReplicaSet, free_port, summary, wait_for

NORMD, NORMCTL = "", ""
ROOT = pathlib.Path(__file__).resolve().parents[2]
# Two polls of Envoy's health checks and more.
DRAIN = ["--drain_delay=3s", "--drain_timeout=10s"]


def find_nginx():
    return shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin")


def find_envoy():
    installed = sorted(ROOT.glob("build/python/lib/python3*/site-packages/envoy/_bin/envoy"))
    return os.environ.get("ENVOY") or (str(installed[0]) if installed else shutil.which("envoy"))


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def write_npy(path, rows, hidden_size):
    """f32 values that differ from element to element."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {hidden_size}), }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    row = array.array("f", [((i * 7919) % 10007) / 5003.5 - 1 for i in range(hidden_size)])
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
        for _ in range(rows):
            file.write(row.tobytes())
            row.append(row.pop(0))


class Proxy:
    """A proxy process over `replicas`, from the shipped configuration with names and ports replaced."""

    def __init__(self, replicas):
        self.port = free_port(("127.0.0.1",))
        self._admin_port = free_port(("127.0.0.1",))
        self._folder = replicas.folder
        self._replicas = replicas.replicas
        self._log = self._folder / "proxy.log"
        self._process = None

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def configuration(self, path, replacements):
        text = (ROOT / path).read_text()
        for old, new in replacements:
            assert old in text, f"{path} has no {old!r}"
            text = text.replace(old, new)
        return text

    def __enter__(self):
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(self.command(), stdout=log, stderr=log)
        try:
            wait_for(self._serves, "the proxy passes calls on")
        except BaseException:
            self.__exit__()
            raise
        return self

    def _serves(self):
        assert self._process.poll() is None, self._log.read_text()
        return listens(self.port) and subprocess.run([NORMCTL, "info", "--server", self.address], capture_output=True).returncode == 0

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait()


class Nginx(Proxy):
    def command(self):
        names = [(f"normd-{i + 1}:8470", replica.address) for i, replica in enumerate(self._replicas)]
        names += [("listen 8480 http2", f"listen 127.0.0.1:{self.port} http2")]
        (self._folder / "normd.conf").write_text(self.configuration("deploy/nginx/normd.conf", names))
        temporary = "".join(f"{kind}_temp_path {self._folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        main = self._folder / "nginx.conf"
        main.write_text(f"daemon off; pid {self._folder}/nginx.pid; error_log stderr warn; worker_processes 1;"
                        f"events {{ worker_connections 4096; }} http {{ access_log off; {temporary} include normd.conf; }}\n")
        return [find_nginx(), "-p", str(self._folder), "-c", str(main), "-e", "stderr"]


class Envoy(Proxy):
    def command(self):
        names = []
        for i, replica in enumerate(self._replicas):
            host, port = replica.address.split(":")
            names.append((f"address: normd-{i + 1}, port_value: 8470", f"address: {host}, port_value: {port}"))
        names += [("address: 0.0.0.0, port_value: 8480", f"address: 127.0.0.1, port_value: {self.port}"),
                  ("port_value: 8481", f"port_value: {self._admin_port}")]
        path = self._folder / "envoy.yaml"
        path.write_text(self.configuration("deploy/envoy/normd.yaml", names))
        return [find_envoy(), "-c", str(path), "--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"]


class ProxyCases:
    """What holds behind either proxy; `proxy` is its class."""

    proxy = None

    def change_under_load(self, name, change, load):
        changed, reports = load.half_while(change)
        print(f"{self.proxy.__name__} {name}: {summary(reports)}" + (f"; seconds to drain {changed}" if changed else ""), flush=True)
        for report in reports:
            self.assertEqual(report["failed"], 0, report["errors"])

    def test_replicas_killed_and_restarted_in_turn(self):
        for transport in ("unary", "stream"):
            with self.subTest(transport), ReplicaSet(NORMD, NORMCTL, DRAIN) as replicas, self.proxy(replicas) as proxy:
                load = Load(NORMCTL, proxy.address, attempts=8, transport=transport)
                self.change_under_load(f"killed, {transport}", replicas.kill_in_turn, load)
                self.change_under_load(f"drained, {transport}", replicas.drain_in_turn, load)

    def test_large_tensors_pass_unchanged(self):
        """64 MiB in one message and in rows: the bits of a replica asked directly."""
        with ReplicaSet(NORMD, NORMCTL, DRAIN) as replicas, self.proxy(replicas) as proxy:
            x = replicas.folder / "x.npy"
            write_npy(x, 4096, 4096)
            results = []
            for server, above_mib in ((replicas.replicas[0].address, 512), (proxy.address, 512), (proxy.address, 0)):
                y = replicas.folder / f"y{len(results)}.npy"
                run = subprocess.run([NORMCTL, "layernorm", "--input", str(x), "--output", str(y), "--server", server,
                                      "--stream-above", str(above_mib), "--attempts", "1"], capture_output=True, text=True)
                self.assertEqual(run.returncode, 0, run.stderr)
                results.append(y.read_bytes())
                y.unlink()
            self.assertGreater(len(results[0]), 64 << 20)
            self.assertTrue(results[0] == results[1], "one message")
            self.assertTrue(results[0] == results[2], "in rows")

    def test_calls_take_the_replicas_in_turn(self):
        with ReplicaSet(NORMD, NORMCTL, DRAIN) as replicas, self.proxy(replicas) as proxy:
            load = Load(NORMCTL, proxy.address, attempts=1)
            load.half_while(lambda running: [running.await_calls(replica) for replica in replicas.replicas], seconds=1)


@unittest.skipUnless(find_nginx(), "SKIPPED: no nginx here")
class NginxTest(ProxyCases, unittest.TestCase):
    proxy = Nginx


@unittest.skipUnless(find_envoy(), "SKIPPED: no Envoy here")
class EnvoyTest(ProxyCases, unittest.TestCase):
    proxy = Envoy


if __name__ == "__main__":
    NORMD, NORMCTL = sys.argv[1:3]
    if not find_nginx() and not find_envoy():
        print("proxies_test.py: SKIPPED: neither nginx nor Envoy is here (deploy/install-deps.sh --test installs them)")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
