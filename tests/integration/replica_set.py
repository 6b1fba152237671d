"""normd replicas on the loopback interface that come, go and come back, and a load over them by `normctl bench`."""

import concurrent.futures
import json
import pathlib
import random
import signal
import socket
import subprocess
import tempfile
import threading
import time

ADDRESSES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


def wait_for(condition, what, seconds=60):
    """Polls; the result does not depend on how long it takes."""
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.02)


def free_port(addresses=ADDRESSES):
    """Free on every address, and below the ports that the kernel gives to outgoing connections: a client that waits for a
    replica could otherwise be given its port."""
    for _ in range(1000):
        port = random.randrange(20000, 32000)
        try:
            for address in addresses:
                with socket.socket() as probe:
                    probe.bind((address, port))
            return port
        except OSError:
            continue
    raise AssertionError("no free port")


class Replica:
    """One normd that can be started again at its address."""

    def __init__(self, normd, normctl, address, folder, flags):
        self.address = address
        self._normctl = normctl
        self._ports = folder / f"{address.replace(':', '_')}.ports"
        self._log = folder / f"{address.replace(':', '_')}.log"
        self._command = [normd, "--device=cpu", "--cpu_threads=1", "--grpc_threads=1", f"--listen={address}",
                         "--metrics_listen=127.0.0.1:0", f"--port_file={self._ports}", *flags]
        self._process = None

    def start(self):
        self._ports.unlink(missing_ok=True)
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        wait_for(self._is_ready, f"{self.address} is ready")

    def _is_ready(self):
        if self._process.poll() is not None:
            raise AssertionError(f"{self.address} ended with {self._process.returncode}:\n{self._log.read_text()}")
        return self._ports.exists()

    def served(self):
        """Requests that it has answered since its start."""
        report = subprocess.run([self._normctl, "info", "--json", "--server", self.address], capture_output=True, check=True)
        return json.loads(report.stdout)["statistics"]["requests_ok"]

    def kill(self):
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def drain(self):
        """SIGTERM. Its exit code, which is 0 where all accepted work was finished within --drain_timeout, and the seconds."""
        begin = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout=120), time.monotonic() - begin

    def stop(self):
        if self._process is not None and self._process.poll() is None:
            self.kill()


class ReplicaSet:
    """Three replicas at one port of three addresses."""

    def __init__(self, normd, normctl, flags):
        self._folder = tempfile.TemporaryDirectory(prefix="normd-replicas-")
        self.folder = pathlib.Path(self._folder.name)
        self.port = free_port()
        self.replicas = [Replica(normd, normctl, f"{address}:{self.port}", self.folder, flags) for address in ADDRESSES]
        self.addresses = ",".join(replica.address for replica in self.replicas)

    def __enter__(self):
        try:
            for replica in self.replicas:
                replica.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for replica in self.replicas:
            replica.stop()
        self._folder.cleanup()

    def kill_in_turn(self, load):
        """Each is killed, and the next only when it is back and has calls again."""
        for replica in self.replicas:
            load.await_calls(replica)
            replica.kill()
            replica.start()
            load.await_calls(replica)
        return []

    def drain_in_turn(self, load):
        """A rolling restart; the seconds that each took to end."""
        seconds = []
        for replica in self.replicas:
            load.await_calls(replica)
            code, took = replica.drain()
            assert code == 0, f"{replica.address} ended with {code}: calls were cut off at the end of --drain_timeout"
            seconds.append(round(took, 2))
            replica.start()
            load.await_calls(replica)
        return seconds


class Load:
    """`normctl bench` in an open loop at half of what the replicas reach, again and again until a change is over."""

    CASE = ["--op", "layer_norm", "--shape", "16x512", "--dtype", "f32", "--connections", "4", "--in-flight", "8"]

    def __init__(self, normctl, server, *, attempts, transport="unary"):
        self._normctl = normctl
        self._server = server
        self._flags = ["--server", server, "--transport", transport, "--attempts", str(attempts), *self.CASE]
        self._transport = transport

    def _bench(self, *flags):
        run = subprocess.run([self._normctl, "bench", *self._flags, *flags, "--json", "-"], capture_output=True, text=True)
        assert run.returncode == 0, f"normctl bench ended with {run.returncode}: {run.stderr}"
        return json.loads(run.stdout)

    def await_calls(self, replica):
        """Until calls reach it: whoever balances knows that it is there. Streams stay where they are, so calls are sent."""
        before = replica.served()

        def gets_calls():
            if self._transport == "stream":
                subprocess.run([self._normctl, "bench", "--server", self._server, "--attempts", "8", "--in-flight", "4",
                                "--warm-up", "0", "--duration", "0.05"], capture_output=True)
            return replica.served() > before

        wait_for(gets_calls, f"{replica.address} gets calls")

    def half_while(self, change, seconds=4):
        """What change(self) returned, and the reports of the loads meanwhile, `seconds` each."""
        rate = round(self._bench("--warm-up", "0.5", "--duration", "1")["requests_per_second"] / 2)
        over = threading.Event()

        def keep_loading():
            reports = []
            while not over.is_set():
                reports.append(self._bench("--rate", str(rate), "--warm-up", "0", "--duration", str(seconds)))
            return reports

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            reports = pool.submit(keep_loading)
            try:
                changed = change(self)
            finally:
                over.set()
            return changed, reports.result()


def summary(reports):
    """One line of figures over several loads; latencies are the worst of them."""
    total = {name: sum(report[name] for report in reports) for name in ("requests", "failed", "retried", "not_sent")}
    latency = {name: max(report["latency_us"][name] for report in reports) for name in ("p50", "p99", "max")}
    return (f"{total['requests']} requests at {reports[0]['options']['rate']:.0f}/s, {total['failed']} failed, "
            f"{total['retried']} retried, {total['not_sent']} not sent, latency ms p50 {latency['p50'] / 1e3:.2f} "
            f"p99 {latency['p99'] / 1e3:.1f} max {latency['max'] / 1e3:.1f}")
