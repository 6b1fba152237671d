#!/usr/bin/env python3
"""Measures what normd promises of its serving path: every load by `normctl bench`, one after another on one machine.

Usage: bars.py --normd PROGRAM --normctl PROGRAM --out FILE.json [--sweep FILE.json] [--peer PROGRAM ARGUMENT...]
       [--device cuda|cpu] [--seconds S] [--warm-up S] [--rounds N] [--only NAME,...] [--commit HASH]
       [--server-cpus LIST --client-cpus LIST] [--triton NORM_CALL_BENCH DESCRIPTORS]

A load with an echo runs in --rounds short phases of echoes and requests in turn, a lone call beside its echo, so that what the
machine does meanwhile meets both alike; the spread over the rounds is in the result. `weights` is repeated with ever more requests
in flight (`weights_sweep`), to find where more of them bring no more calls. With --server-cpus and --client-cpus (such as 0-7 and
8-15) servers and load generators run on those cores alone; otherwise they take cores from each other.

--peer, the last flag, is a command that serves norm.v1 (client/normctl/peers): `--listen` and `--port-file` are added, and it is
measured by the loads that have a peer. FILE.json holds each load's command and what bench said; readme_tables.py writes the
table of README.md from it. --sweep also measures latency against load, for bench_plot.py. --triton measures the Triton Inference Server
(peers/triton_server.py says what it needs), normd and normd's echo in turn, by the program norm_call_bench: it sends one encoded
message again and again, of norm.v1 (DESCRIPTORS: norm_v1.binpb) or of KServe v2. Without Triton on this machine that part is skipped.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time

SMALL = "--shape 4x4096 --connections 16 --in-flight 8"
LARGE = "--shape 8192x4096 --connections 4 --in-flight 1"
MIXES = {"weights": "op=rms_norm shape=4x4096 dtype=bf16 weight=inline sets=64\n"}
# name: (arguments, share of --seconds). bf16 RMSNorm where no mix is named. {rounds}: the load runs in --rounds parts.
LOADS = {
    "1mib_1": ("--shape 128x4096 --connections 1 --in-flight 2 --echo {rounds}", 1),
    "1mib_4": ("--shape 128x4096 --connections 4 --in-flight 2 --echo {rounds}", 1),
    "1mib_1_deep": ("--shape 128x4096 --connections 1 --in-flight 4 --echo {rounds}", 1),
    "1mib_4_deep": ("--shape 128x4096 --connections 4 --in-flight 4 --echo {rounds}", 1),
    "64mib_1": ("--shape 8192x4096 --connections 1 --in-flight 2 --echo {rounds}", 2),
    "64mib_4": ("--shape 8192x4096 --connections 4 --in-flight 2 --echo {rounds}", 2),
    "small": (f"{SMALL} --echo=empty {{rounds}}", 1),
    "small_same": (f"{SMALL} --echo {{rounds}}", 1),
    "lone": ("--shape 4x4096 --connections 1 --in-flight 1 --echo --pairs", 1),
    "weights": ("--mix {weights} --connections 16 --in-flight 8", 1),
    "weights_stream": ("--mix {weights} --transport stream --connections 16 --in-flight 32", 1),
    "flood": ("--shape 4x4096 --connections 1 --in-flight 32 --rate 1000 --flood 4 --flood-in-flight 32", 1),
}
# Connections and requests in flight on each with which `weights` is repeated, fewest requests first; share of --seconds of each.
WEIGHTS_SWEEP = ((16, 8), (16, 16), (32, 16), (64, 16))
WEIGHTS_SHARE = 0.5
# Calls/s within this of the most are no fewer.
SATURATED = 0.97
# A load beside that of a second client, in a process of its own: name: (arguments, the other's arguments, share of --seconds).
BESIDE_LOADS = {
    "flood_large": ("--shape 4x4096 --connections 1 --in-flight 32 --rate 2000",
                    "--shape 8192x4096 --connections 4 --in-flight 2", 1),
}
PEER_LOADS = {
    "small": (SMALL, 1),
    "large": (LARGE, 6),
    "lone": ("--shape 4x4096 --connections 1 --in-flight 1", 1),
}
# name: (rows of 4096 bf16, connections, calls in flight on each, share of --seconds)
CALL_LOADS = {
    "small": (4, 16, 8, 1),
    "1mib": (128, 4, 4, 1),
    "large": (8192, 4, 1, 2),
    "lone": (4, 1, 1, 1),
}
TRITON_SERVER = pathlib.Path(__file__).resolve().parents[1] / "peers/triton_server.py"
TRITON_NOT_FOUND = 3  # exit status


class NotServing(RuntimeError):
    """A server ended before it was ready."""

    def __init__(self, program, status):
        super().__init__(f"{program} ended with {status} before it was ready")
        self.status = status


def await_ports(process, path):
    while not path.exists():
        if process.poll() is not None:
            raise NotServing(process.args[0], process.returncode)
        time.sleep(0.02)
    return dict(line.split("=", 1) for line in path.read_text().split())


def on_cores(cpus, command):
    """`command` on the cores of a list such as 0-7, or on all."""
    return ["taskset", "--cpu-list", cpus, *command] if cpus else list(command)


@contextlib.contextmanager
def serving(command, folder, port_file_flag):
    """What a server that runs `command` on a free port wrote when it was ready; "grpc" is its address."""
    ports = pathlib.Path(folder) / f"ports{time.monotonic_ns()}"
    process = subprocess.Popen([*command, "--listen=127.0.0.1:0", f"{port_file_flag}={ports}"], stdout=subprocess.DEVNULL)
    try:
        yield await_ports(process, ports)
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def running(normctl, address, arguments, cpus=None):
    """`normctl bench` in a process of its own, and its report in the list once it has ended."""
    command = on_cores(cpus, [normctl, "bench", "--server", address, *arguments.split(), "--json", "-"])
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ended = []
    try:
        yield ended
        out, err = process.communicate()
        named = " ".join(["normctl", "bench", *arguments.split()])
        ended.append({"command": named, "error": err.strip()} if process.returncode != 0 else
                     {"command": named, "report": json.loads(out)})
    finally:
        process.kill()
        process.wait()


def bench(normctl, address, arguments, cpus=None):
    """What `normctl bench` reports; the failed command and its error where it fails."""
    with running(normctl, address, arguments, cpus) as ended:
        pass
    return ended[0]


def bench_beside(options, address, arguments, flood, seconds):
    """The report of a load beside another client that began before it and ends after it, and what it has to itself as `alone`."""
    client = (options.normctl, address)
    timing = f"--warm-up {options.warm_up:g} --duration {seconds:g}"
    alone = bench(*client, f"{arguments} {timing}", options.client_cpus)
    longer = f"--warm-up 0.1 --duration {2 * options.warm_up + seconds + 0.5:g}"
    with running(*client, f"{flood} {longer}", options.client_cpus) as other:
        time.sleep(options.warm_up)
        run = bench(*client, f"{arguments} {timing}", options.client_cpus)
    for part in (alone, other[0]):
        if "error" in part:
            return part
    return {**run, "alone": alone["report"], "flood": other[0]}


def describe(name, run):
    report = run.get("report")
    if report is None:
        return f"{name:12s} {run['error']}"
    latency = report["latency_us"]
    text = (f"{name:12s} {report['requests_per_second']:10.1f}/s {report['gb_per_second']:7.2f} GB/s p50 {latency['p50']:9.1f} "
            f"p99 {latency['p99']:9.1f}")
    if report["over_echo"]:
        over = report["over_echo"]
        text += f" | of the echo {over['requests_per_second_ratio']:.3f}"
        if over["rounds"]:
            text += " (rounds {median:.3f}, {min:.3f} to {max:.3f})".format(**over["rounds"])
        text += f", p50 {over['p50_us']:+.1f} us"
        if over["pairs_us"]:
            text += f" (pairs {over['pairs_us']['p50']:+.1f} us)"
    if report["over_alone"]:
        text += f" | beside a flood p99 x{report['over_alone']['p99_ratio']:.2f}"
    if "alone" in run:
        text += f" | beside another process p99 x{latency['p99'] / run['alone']['latency_us']['p99']:.2f}"
    if report["launches_per_request"] is not None:
        text += f" | launches/request {report['launches_per_request']:.3f}"
    return text


def saturation(runs):
    """Of loads with ever more requests in flight, the first one that reached what the most reached; None while calls/s still rise."""
    reached = [run for run in runs if "report" in run]
    rates = [run["report"]["requests_per_second"] for run in reached]
    first = next((i for i, rate in enumerate(rates) if rate >= SATURATED * max(rates)), None)
    return None if first is None or first == len(rates) - 1 else reached[first]


def call_bench(options, address, messages, load, folder):
    """What norm_call_bench reports where its first response is right and no call failed; otherwise an error."""
    import call_messages
    rows, connections, in_flight, share = load
    x = call_messages.draw(rows, 4096)
    message, response = pathlib.Path(folder) / "request", pathlib.Path(folder) / "response"
    message.write_bytes(messages.encode(x))
    flags = [f"--method={messages.METHOD}", f"--connections={connections}", f"--in_flight={in_flight}", f"--warm_up={options.warm_up:g}",
             f"--duration={options.seconds * share:g}", f"--response_bytes={x.nbytes}"]
    program = [options.triton[0], *flags, f"--server={address}", f"--message={message}", f"--save={response}"]
    done = subprocess.run(on_cores(options.client_cpus, program), capture_output=True, text=True)
    command = {"command": " ".join(["norm_call_bench", *flags])}
    if done.returncode != 0:
        return command | {"error": done.stderr.strip()}
    report = json.loads(done.stdout)
    if report["failed"]:
        return command | {"error": f"{report['failed']} calls failed: {report['first_error']}"}
    try:
        messages.check(x, response.read_bytes())
    except ValueError as wrong:
        return command | {"error": str(wrong)}
    return command | {"report": report}


def beside_triton(options, address, folder):
    """Each of CALL_LOADS by normd at `address`, its echo and Triton in turn; why not, where Triton is not found."""
    command = on_cores(options.server_cpus, [sys.executable, str(TRITON_SERVER), f"--device={options.device}"])
    try:
        with serving(command, folder, "--port-file") as ports:
            import call_messages
            servers = {"echo": (address, call_messages.EchoV1(options.triton[1])),
                       "normd": (address, call_messages.NormV1(options.triton[1])),
                       "triton": (ports["grpc"], call_messages.KServeV2())}
            runs = {"server_version": f"Triton {ports['version']}"}
            for name, load in CALL_LOADS.items():
                runs[name] = {server: call_bench(options, *to, load, folder) for server, to in servers.items()}
                for server, run in runs[name].items():
                    print(describe_calls(f"{name} {server}", run), flush=True)
            return runs
    except NotServing as ended:
        if ended.status != TRITON_NOT_FOUND:
            raise
        print("triton       SKIPPED: not on this machine (peers/triton_server.py)", flush=True)
        return {"skipped": "not on this machine"}


def describe_calls(name, run):
    report = run.get("report")
    if report is None:
        return f"{name:12s} {run['error']}"
    return (f"{name:12s} {report['requests_per_second']:10.1f}/s {report['gb_per_second']:7.2f} GB/s p50 "
            f"{report['latency_us']['p50']:9.1f} p99 {report['latency_us']['p99']:9.1f}")


def gpu_name():
    try:
        done = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else None


def run_all(options, folder):
    """Measures, and writes after each group what there is."""
    def write():
        pathlib.Path(options.out).write_text(json.dumps(report, indent=1) + "\n")

    parts = {"rounds": f"--rounds {options.rounds}"}
    for name, cases in MIXES.items():
        parts[name] = pathlib.Path(folder) / f"{name}.txt"
        parts[name].write_text(cases)

    def run_one(name, arguments, share, address):
        warm_up = options.warm_up / (options.rounds if "{rounds}" in arguments else 1)
        timing = f"--warm-up {warm_up:g} --duration {options.seconds * share:g}"
        run = bench(options.normctl, address, f"{arguments.format(**parts)} {timing}", options.client_cpus)
        print(describe(name, run), flush=True)
        return run

    def measured(loads, address, only):
        return {name: run_one(name, *load, address) for name, load in loads.items() if not only or name in only}

    report = {"date": datetime.date.today().isoformat(), "commit": options.commit, "device": gpu_name() or "cpu",
              "cores": len(os.sched_getaffinity(0)), "kernel": platform.release(), "server_cpus": options.server_cpus,
              "client_cpus": options.client_cpus}
    normd = on_cores(options.server_cpus, [options.normd, f"--device={options.device}", "--metrics_listen=127.0.0.1:0"])
    with serving(normd, folder, "--port_file") as ports:
        address = ports["grpc"]
        report["normd"] = measured(LOADS, address, options.only)
        for name, (arguments, flood, share) in BESIDE_LOADS.items():
            if not options.only or name in options.only:
                seconds = options.seconds * share
                run = report["normd"][name] = bench_beside(options, address, arguments, flood, seconds)
                print(describe(name, run), flush=True)
        if not options.only or "weights" in options.only:
            report["weights_sweep"] = [
                run_one(f"weights {connections}x{in_flight}",
                        f"--mix {{weights}} --connections {connections} --in-flight {in_flight}", WEIGHTS_SHARE, address)
                for connections, in_flight in WEIGHTS_SWEEP]
        write()
        if options.peer:
            report["normd_beside_peer"] = measured(PEER_LOADS, address, None)
            write()
        if options.sweep:
            seconds = f"--warm-up 0.1 --duration {options.seconds / 2:g}"
            run = bench(options.normctl, address, f"{SMALL} --sweep {seconds}", options.client_cpus)
            if "report" in run:
                pathlib.Path(options.sweep).write_text(json.dumps(run["report"], indent=1) + "\n")
            print("sweep       ", run.get("error", "written"), flush=True)
        if options.triton:
            report["triton"] = beside_triton(options, address, folder)
            write()
    if options.peer:
        with serving(on_cores(options.server_cpus, options.peer), folder, "--port-file") as ports:
            report["peer"] = measured(PEER_LOADS, ports["grpc"], None)
            write()


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--normd", required=True)
    parser.add_argument("--normctl", required=True)
    parser.add_argument("--out", required=True, metavar="FILE.json")
    parser.add_argument("--sweep", metavar="FILE.json")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--seconds", type=float, default=4, help="of a load; twice as long for 64 MiB")
    parser.add_argument("--warm-up", type=float, default=0.5, help="seconds before each; of rounds a part before each phase")
    parser.add_argument("--rounds", type=int, default=5, help="parts of a load with an echo")
    parser.add_argument("--server-cpus", metavar="LIST", help="cores of the servers, such as 0-7 [all]")
    parser.add_argument("--client-cpus", metavar="LIST", help="cores of the load generators, such as 8-15 [all]")
    parser.add_argument("--only", type=lambda text: text.split(","), help="names of loads of normd, or none [all]")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--triton", nargs=2, metavar=("NORM_CALL_BENCH", "DESCRIPTORS"))
    parser.add_argument("--peer", nargs=argparse.REMAINDER, metavar="PROGRAM ARGUMENT...")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        run_all(options, folder)


if __name__ == "__main__":
    main(sys.argv[1:])
