"""A Prometheus that scrapes servers under load, all on this machine's loopback address, with the rules of deploy/prometheus.

Two normd of the CPU backend are loaded by `normctl bench`; a third target, "h200", replays what /metrics of a loaded normd said on
an NVIDIA H200 (tests/data/h200_scrapes.tar.xz), a recorded answer a scrape, so that GPUs are seen where none is.
"""

import contextlib
import http.server
import json
import pathlib
import re
import socket
import subprocess
import tarfile
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

SCRAPE_SECONDS = 0.5  # also the step of the recording
REPLAYED = "h200"


class Prometheus:
    """Its HTTP API."""

    def __init__(self, url):
        self.url = url

    def get(self, path, **parameters):
        query = urllib.parse.urlencode(parameters, doseq=True)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=30) as reply:
                return json.load(reply)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(f"{path} {parameters}: {error.read().decode()}") from error

    def range(self, expr, start, end, step):
        """A list of (labels, [(time, value), ...])."""
        series = self.get("query_range", query=expr, start=start, end=end, step=step)["result"]
        return [(one["metric"], [(at, float(value)) for at, value in one["values"]]) for one in series]

    def instant(self, expr, at):
        """A list of (labels, value)."""
        series = self.get("query", query=expr, time=at)["result"]
        return [(one["metric"], float(one["value"][1])) for one in series]


class Replay(http.server.ThreadingHTTPServer):
    """Answers with the first of the recorded scrapes until it plays, then with one after another, and goes on with the last."""

    def __init__(self, archive):
        with tarfile.open(archive) as tar:
            members = sorted((member for member in tar.getmembers() if member.isfile()), key=lambda member: member.name)
            self.answers = [tar.extractfile(member).read() for member in members]
        self.playing = False
        self.position = 0
        super().__init__(("127.0.0.1", 0), Replay.Handler)
        self.thread = threading.Thread(target=self.serve_forever)
        self.thread.start()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            replay = self.server
            if replay.playing:
                replay.position = min(replay.position + 1, len(replay.answers) - 1)
            body = replay.answers[replay.position]
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    def handle_error(self, request, client_address):
        pass  # Prometheus ended while it was answered

    def stop(self):
        self.shutdown()
        self.thread.join()
        self.server_close()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def replace_once(pattern, text, replacement):
    changed, count = re.subn(pattern, lambda _: replacement, text)
    if count != 1:
        raise ValueError(f"prometheus.yml has {count} lines like {pattern}")
    return changed


class Rig:
    def __init__(self, source, normd, normctl):
        self.source, self.normd, self.normctl = pathlib.Path(source), normd, normctl
        self.exits = contextlib.ExitStack()
        self.addresses = {}  # of each normd: grpc, metrics
        self.loads = []

    def __enter__(self):
        with self.exits:
            self.folder = pathlib.Path(self.exits.enter_context(tempfile.TemporaryDirectory()))
            # The first has a short queue, so that it turns requests away.
            self.start_normd("normd-0", "--max_queue_requests=16")
            self.start_normd("normd-1")
            self.replay = Replay(self.source / "tests/data/h200_scrapes.tar.xz")
            self.exits.callback(self.replay.stop)
            self.start_prometheus()
            self.exits = self.exits.pop_all()
        return self

    def __exit__(self, *error):
        return self.exits.__exit__(*error)

    def start(self, command, **more):
        process = subprocess.Popen(command, **more)
        self.exits.callback(process.wait)
        self.exits.callback(process.terminate)
        return process

    def await_file(self, process, path):
        while not path.exists():
            if process.poll() is not None:
                raise RuntimeError(f"{process.args[0]} ended with {process.returncode} before it was ready")
            time.sleep(0.01)
        return path.read_text()

    def start_normd(self, name, *flags):
        ports = self.folder / f"{name}.ports"
        process = self.start([self.normd, "--device=cpu", "--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0", "--log_level=error",
                              f"--port_file={ports}", *flags], stdout=subprocess.DEVNULL)
        self.addresses[name] = dict(line.split("=", 1) for line in self.await_file(process, ports).split())

    def start_prometheus(self):
        """With the shipped configuration, but for targets and pace."""
        shipped = self.source / "deploy/prometheus"
        targets = {name: address["metrics"] for name, address in self.addresses.items()}
        targets[REPLAYED] = f"127.0.0.1:{self.replay.server_port}"
        config = (shipped / "prometheus.yml").read_text()
        for key in ("scrape_interval", "scrape_timeout", "evaluation_interval"):
            config = replace_once(rf"(?m)^  {key}: .*$", config, f"  {key}: {round(SCRAPE_SECONDS * 1000)}ms")
        config = replace_once(r'(?m)^      - targets: \["normd:8471"\]$', config, "\n".join(
            f'      - targets: ["{address}"]\n        labels: {{instance: "{name}"}}' for name, address in targets.items()))
        (self.folder / "rules").symlink_to(shipped / "rules")
        (self.folder / "prometheus.yml").write_text(config)
        port = free_port()
        self.prometheus = Prometheus(f"http://127.0.0.1:{port}")
        with open(self.folder / "prometheus.log", "w") as log:
            process = self.start(["prometheus", f"--config.file={self.folder}/prometheus.yml", f"--storage.tsdb.path={self.folder}/tsdb",
                                  f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"], stdout=log, stderr=log)
        while True:
            try:
                urllib.request.urlopen(f"{self.prometheus.url}/-/ready", timeout=5).close()
                # It looks at its targets some seconds after its start.
                if len(self.prometheus.instant("up == 1", time.time())) == len(targets):
                    return
            except OSError:
                if process.poll() is not None:
                    raise RuntimeError((self.folder / "prometheus.log").read_text())
            time.sleep(0.02)

    def load(self, name, seconds, *arguments):
        command = [self.normctl, "bench", "--server", self.addresses[name]["grpc"], "--warm-up=0", f"--duration={seconds}", "--json=-", *arguments]
        self.loads.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))

    def start_load(self, seconds):
        """All operations and types, a stream, and more than a queue takes; and the recording plays."""
        self.replay.playing = True
        mix = str(self.source / "tests/data/mix.txt")
        self.load("normd-0", seconds, "--mix", mix, "--connections=8", "--in-flight=8")
        self.load("normd-1", seconds, "--mix", mix, "--connections=3", "--in-flight=2")
        self.load("normd-1", seconds, "--shape=64x4096", "--dtype=f64", "--transport=stream", "--connections=2", "--in-flight=4")
        self.load("normd-1", seconds, "--op=layer_norm", "--shape=512x4096", "--dtype=f16", "--rate=20")

    def finish_load(self):
        """What each load reports."""
        reports = []
        for process in self.loads:
            output, _ = process.communicate()
            if process.returncode != 0:
                raise RuntimeError(f"{process.args} ended with {process.returncode}")
            reports.append(json.loads(output))
        return reports

    def scrape(self, name):
        with urllib.request.urlopen(f"http://{self.addresses[name]['metrics']}/metrics", timeout=10) as reply:
            return reply.read().decode()
