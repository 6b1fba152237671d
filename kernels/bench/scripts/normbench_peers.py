#!/usr/bin/env python3
"""Times other libraries on the cases of a suite, by normbench's rules, and merges the rows into a result file.

The same shapes, the same rule: 256 MiB are read, an event, the call, an event; the median counts. (A spin kernel before the
first event hides the time that Python takes to enqueue the call.) Results are compared with float64 before they are timed.
Each library runs in processes of its own, several where it compiles: they compile side by side, and then take turns at the
GPU to be timed. What a process has measured stays, whatever becomes of it.
"""

import argparse
import contextlib
import fcntl
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import traceback

import bench_results

IMPLS = ("torch", "cudnn", "liger", "quack", "torch_compile")
FLUSH_BYTES = 256 << 20
SPIN_CYCLES = 700_000
GRAPH_CALLS = 200
FAILURE_LINES = 25  # of the log of a library without any result
# Processes of the libraries that compile for each shape, as parts of --processes.
PROCESSES = {"torch_compile": 0.75, "cudnn": 0.25, "liger": 0.25, "quack": 0.25}


class ColdTimer:
    """Medians of event times with cold caches."""

    def __init__(self, samples):
        import torch

        self.torch = torch
        self.samples = samples
        self.flushed = torch.ones(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
        self.copies = {}
        end = time.monotonic() + 0.1
        while time.monotonic() < end:
            for _ in range(64):
                self.flushed.sum()
            torch.cuda.synchronize()

    def median_us(self, call, samples=None):
        torch = self.torch
        call()
        torch.cuda.synchronize()
        times = []
        for _ in range(samples or self.samples):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self.flushed.sum()
            torch.cuda._sleep(SPIN_CYCLES)
            begin.record()
            call()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e3)
        return sorted(times)[len(times) // 2]

    def copy_us(self, size):
        """A copy that reads and writes `size` bytes in total."""
        if size not in self.copies:
            source = self.torch.ones(max(1, size // 2), dtype=self.torch.uint8, device="cuda")
            target = self.torch.empty_like(source)
            self.copies[size] = self.median_us(lambda: target.copy_(source), 2 * self.samples + 1)
        return self.copies[size]

    def graph_us(self, call):
        """One of many calls in a captured graph, caches warm."""
        torch = self.torch
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(GRAPH_CALLS):
                call()
        graph.replay()
        torch.cuda.synchronize()
        times = []
        for _ in range(self.samples):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / GRAPH_CALLS)
        return sorted(times)[len(times) // 2]


def set_compiler_options():
    import torch._dynamo
    import torch._functorch.config

    # Gradients are taken again and again of one forward.
    torch._functorch.config.donated_buffer = False
    torch._dynamo.config.cache_size_limit = 1024
    torch._dynamo.config.accumulated_cache_size_limit = 4096


def reason_of(error):
    """The error and what caused it, first lines only; for a missing module also where it was looked for."""
    parts, seen = [], set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        text = str(error).strip().splitlines()
        parts.append(f"{type(error).__name__}: {text[0][:160] if text else ''}")
        if isinstance(error, ModuleNotFoundError):
            parts[-1] += f" (PYTHONPATH={os.environ.get('PYTHONPATH', '')!r}, {sys.executable})"
        error = error.__cause__ or error.__context__
    return ", from ".join(parts)


def part_of(cases, part, parts):
    """The cases of one process: all of a shape stay together, so that the largest are not in memory at once."""
    by_shape = {}
    for index, case in enumerate(cases):
        by_shape.setdefault(tuple(case["shape"]), []).append(index)
    shares = [[] for _ in range(parts)]
    for indices in sorted(by_shape.values(), key=len, reverse=True):
        min(shares, key=len).extend(indices)
    return shares[part]


@contextlib.contextmanager
def held(lock, kind):
    """Compiling holds the lock together with others, timing alone."""
    fcntl.flock(lock, kind)
    try:
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)


def work(options, cases):
    """A process for one library: a line of JSON for each of its cases, as soon as it is known."""
    import torch

    import peer_calls

    if not torch.cuda.is_available():
        sys.exit("PyTorch sees no CUDA device")
    if options.worker == "torch_compile":
        set_compiler_options()
    with open(options.out, "a", buffering=1) as out, open(options.lock) as lock:

        def tell(**line):
            out.write(json.dumps(line) + "\n")

        def attempt(index, deadline, action):
            """What `action` returns; None, told, when there is no time or the library fails."""
            if time.time() > deadline:
                tell(case=index, skipped="out of time")
                return None
            try:
                return action(index)
            except Exception as error:  # a peer's failure is a fact to report
                tell(case=index, skipped=reason_of(error))
                if not isinstance(error, peer_calls.NotRun):
                    traceback.print_exc()
                if "CUDA error" in str(error):
                    raise
                return None
            finally:
                torch.cuda.empty_cache()

        def prepare(index):
            case = cases[index]
            forward = peer_calls.forward_of(options.worker, case)
            inputs = peer_calls.Inputs(case)
            peer_calls.check(inputs, peer_calls.call_of(options.worker, forward, inputs)())
            torch.cuda.synchronize()
            return forward

        def measure(index):
            case = cases[index]
            inputs = peer_calls.Inputs(case)
            call = peer_calls.call_of(options.worker, forwards[index], inputs)
            if case["variant"] != "graph":
                return timer.median_us(call), timer.copy_us(case["bytes"])
            source = torch.ones(case["bytes"] // 2, dtype=torch.uint8, device="cuda")
            target = torch.empty_like(source)
            return timer.graph_us(call), timer.graph_us(lambda: target.copy_(source))

        forwards = {}
        with held(lock, fcntl.LOCK_SH):
            tell(began=time.time())
            for index in part_of(cases, options.part, options.parts):
                forward = attempt(index, options.compile_until, prepare)
                if forward is not None:
                    forwards[index] = forward
        tell(compiled=time.time())
        with held(lock, fcntl.LOCK_EX):
            if not forwards:
                return
            timer = ColdTimer(options.samples)
            tell(copy_gbs=4 * 2**30 / (timer.copy_us(4 * 2**30) * 1e3))
            for index in forwards:
                times = attempt(index, options.until, measure)
                if times is not None:
                    tell(case=index, us=times[0], copy_us=times[1])


def start_worker(options, folder, impl, part, parts, deadlines):
    out = os.path.join(folder, f"{impl}.{part}")
    command = [sys.executable, os.path.abspath(__file__), "--worker", impl, "--cases", os.path.join(folder, "cases.json"),
               "--lock", os.path.join(folder, "lock"), "--out", out, "--part", str(part), "--parts", str(parts),
               "--compile-until", str(deadlines[0]), "--until", str(deadlines[1]), "--samples", str(options.samples)]
    with open(out + ".log", "w") as log:  # a pipe could fill
        return out, subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


class Workers:
    """The processes of all libraries, what they told so far, and their end."""

    def __init__(self, options, impls, folder, deadlines):
        self.compile_until, self.until = deadlines
        self.started = time.time()
        self.processes = {}
        for impl in impls:
            parts = max(1, int(PROCESSES[impl] * options.processes)) if impl in PROCESSES else 1
            self.processes[impl] = [start_worker(options, folder, impl, part, parts, deadlines) for part in range(parts)]

    def lines(self, impl):
        found = []
        for out, _ in self.processes[impl]:
            with contextlib.suppress(OSError):
                found += [json.loads(text) for text in pathlib.Path(out).read_text().splitlines(keepends=True)
                          if text.endswith("\n")]
        return found

    def kill_late(self):
        """Whoever still compiles when all should be timed, or still runs when all should have ended."""
        now = time.time()
        for impl, started in self.processes.items():
            for out, process in started:
                if process.poll() is not None or now < self.compile_until + 15:
                    continue
                with contextlib.suppress(OSError):
                    if now > self.until + 10 or '"compiled"' not in pathlib.Path(out).read_text():
                        process.kill()

    def running(self, impl):
        return any(process.poll() is None for _, process in self.processes[impl])

    def kill_all(self):
        for started in self.processes.values():
            for _, process in started:
                if process.poll() is None:
                    process.kill()

    def describe_end(self, impl, times, cases, missing):
        lines = self.lines(impl)
        ends = [process.wait() for _, process in self.processes[impl]]
        spans = [max((line[name] for line in lines if name in line), default=self.started) - self.started
                 for name in ("began", "compiled")]
        print(f"{impl}: {times} of {len(cases)} cases timed; {len(ends)} processes, {sum(end != 0 for end in ends)} failed; "
              f"began by {spans[0]:.0f} s, compiled by {spans[1]:.0f} s, ended by {time.time() - self.started:.0f} s")
        for reason, names in missing.items():
            print(f"  not run, {reason}: {len(names)} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})")
        for (out, _), end in zip(self.processes[impl], ends):
            log = pathlib.Path(out + ".log").read_text().strip().splitlines()
            if end != 0:
                print(f"  a process ended with {end}: " + " | ".join(line.strip()[:160] for line in log[-3:]))
            if times == 0 and log:  # the whole library fails: where, in full
                print("\n".join(f"    {line[:200]}" for line in log[-FAILURE_LINES:]))
                break
        sys.stdout.flush()


def merge_lines(lines, impl, cases, report):
    """Merges what a library's processes told; returns how many times, and why the other cases have none."""
    for line in lines:
        report["copy_gbs"] = report["copy_gbs"] or line.get("copy_gbs", 0.0)
    times, missing, told = 0, {}, set()
    for line in lines:
        if "case" not in line:
            continue
        case = cases[line["case"]]
        told.add(line["case"])
        if "us" in line:
            times += 1
            bench_results.merge(
                report, bench_results.measured_row(case, impl, line["us"], line["copy_us"], report["copy_gbs"]))
        else:
            missing.setdefault(line["skipped"], []).append(bench_results.case_name(case))
    silent = [bench_results.case_name(case) for index, case in enumerate(cases) if index not in told]
    if silent:
        missing.setdefault("its process ended before", []).extend(silent)
    return times, missing


def take_in(workers, impl, cases, report, path):
    times, missing = merge_lines(workers.lines(impl), impl, cases, report)
    workers.describe_end(impl, times, cases, missing)
    if path and times:
        bench_results.write(path, report)


def fresh_report(options):
    names = []
    with contextlib.suppress(OSError):
        names = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True,
                               check=False).stdout.splitlines()
    return {"device": names[0] if names else "unknown", "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "commit": options.commit, "source_hash": options.source_hash, "copy_gbs": 0.0, "rows": []}


def print_table(report, impls):
    """Times of the peers beside this library's."""
    rows = {}
    for row in report["rows"]:
        rows.setdefault(bench_results.case_of(row), {})[row["impl"]] = row
    columns = [impl for impl in ("normd",) + IMPLS if any(impl in found for found in rows.values())]
    print(f"{'case, share of a same-size copy':<58}" + "".join(f"{impl:>14}" for impl in columns))
    for found in rows.values():
        if not set(found) & set(impls):
            continue
        name = bench_results.case_name(next(iter(found.values())))
        shares = "".join(f"{found[impl]['share_of_same_size_copy']:>14.3f}" if impl in found else f"{'-':>14}"
                         for impl in columns)
        print(f"{name:<58}{shares}")


def list_cases(options):
    command = [options.normbench, "kernels", "--list"]
    for name in ("suite", "filter", "dtype"):
        values = getattr(options, name) or []
        for value in [values] if isinstance(values, str) else values:
            command += [f"--{name}", value]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        sys.exit(listed.stderr.strip() or "normbench kernels --list failed")
    return json.loads(listed.stdout)["rows"]


def parse(arguments):
    parser = argparse.ArgumentParser(prog="normbench peers", description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="result file to merge into")
    parser.add_argument("--suite")
    parser.add_argument("--filter", action="append")
    parser.add_argument("--dtype", action="append")
    parser.add_argument("--impl", default=",".join(IMPLS), help="comma-separated: " + ", ".join(IMPLS))
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for all of it")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="to compile side by side")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--source-hash", default="unknown")
    parser.add_argument("--normbench", default="normbench", help=argparse.SUPPRESS)
    for name in ("worker", "cases", "lock", "out"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    for name, kind in (("compile-until", float), ("until", float), ("part", int), ("parts", int)):
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments):
    options = parse(arguments)
    if options.worker:
        work(options, json.loads(pathlib.Path(options.cases).read_text()))
        return 0
    if importlib.util.find_spec("torch") is None:
        sys.exit("normbench peers: PyTorch is needed")
    impls = options.impl.split(",")
    unknown = set(impls) - set(IMPLS)
    if unknown:
        sys.exit(f"normbench peers: unknown --impl {', '.join(sorted(unknown))}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("normbench peers: stopped"))
    start = time.time()
    deadlines = (start + 0.6 * options.limit, start + options.limit)
    cases = list_cases(options)
    if options.json and os.path.exists(options.json):
        report = bench_results.read(options.json)
    else:
        report = fresh_report(options)
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "cases.json").write_text(json.dumps(cases))
        pathlib.Path(folder, "lock").touch()
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(folder, "inductor"))
        os.environ.setdefault("TRITON_CACHE_DIR", os.path.join(folder, "triton"))
        for name in ("TORCHINDUCTOR_COMPILE_THREADS", "OMP_NUM_THREADS"):  # the processes themselves are side by side
            os.environ.setdefault(name, "1")
        workers = Workers(options, impls, folder, deadlines)
        waiting = list(impls)
        try:
            while waiting:
                time.sleep(0.2)
                workers.kill_late()
                for impl in [impl for impl in waiting if not workers.running(impl)]:
                    waiting.remove(impl)
                    take_in(workers, impl, cases, report, options.json)
        finally:
            # Stopped from outside: what was measured counts all the same.
            workers.kill_all()
            for impl in waiting:
                take_in(workers, impl, cases, report, options.json)
    print_table(report, impls)
    return 0 if any(row["impl"] in impls for row in report["rows"]) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
