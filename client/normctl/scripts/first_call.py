#!/usr/bin/env python3
"""Compares the first call of each case on a server that has just started with the steady p99 of the same case.

Usage: first_call.py --normd PROGRAM --normctl PROGRAM [--device cuda|cpu] [--starts N] [--seconds S] [--mix FILE] [--json FILE]
       [--most RATIO]

Starts normd N times; `normctl bench` sends empty echoes, so that neither its own process nor the connection is new, then each case
once, then the mix in a closed loop, one request at a time. A case's ratio is the median over the starts of first call / p99.
Exit status 1 when the ratio of a case is over --most.
"""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile

import bars

MIX = """\
op=rms_norm   shape=4x4096    dtype=bf16 weight=inline share=50
op=rms_norm   shape=4x4096    dtype=bf16 direction=backward weight=inline share=50
op=layer_norm shape=16x768    dtype=f32  weight=inline bias=inline share=50
op=layer_norm shape=16x768    dtype=f32  direction=backward weight=inline bias=inline share=50
op=batch_norm shape=8x64x14x14 dtype=f32 weight=inline bias=inline share=50
op=batch_norm shape=8x64x14x14 dtype=f32 direction=backward weight=inline bias=inline share=50
op=rms_norm   shape=256x4096  dtype=bf16 weight=inline share=10
op=rms_norm   shape=8192x4096 dtype=bf16 weight=inline
"""


def measure(options, folder):
    """For each case: its name, first calls and p99s in microseconds, one per start, and the ratio."""
    mix = options.mix
    if mix is None:
        mix = pathlib.Path(folder) / "mix.txt"
        mix.write_text(MIX)
    normd = [options.normd, f"--device={options.device}", "--metrics_listen=127.0.0.1:0"]
    load = f"--mix {mix} --echo=empty --warm-up 0.5 --duration {options.seconds:g}"
    cases = {}
    for _ in range(options.starts):
        with bars.serving(normd, folder, "--port_file") as ports:
            run = bars.bench(options.normctl, ports["grpc"], load)
        if "error" in run:
            raise RuntimeError(run["error"])
        for case in run["report"]["cases"]:
            one = cases.setdefault(case["name"], {"first_call_us": [], "p99_us": []})
            one["first_call_us"].append(case["first_call_us"])
            one["p99_us"].append(case["latency_us"]["p99"])
    for one in cases.values():
        one["ratio"] = statistics.median(first / p99 for first, p99 in zip(one["first_call_us"], one["p99_us"]))
    return cases


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--normd", required=True)
    parser.add_argument("--normctl", required=True)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--mix", metavar="FILE")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--most", type=float, default=2.0, metavar="RATIO")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        cases = measure(options, folder)
    print(f"{'first us':>10s} {'p99 us':>10s} {'ratio':>6s}")
    for name, one in cases.items():
        print(f"{statistics.median(one['first_call_us']):10.1f} {statistics.median(one['p99_us']):10.1f} {one['ratio']:6.2f}  {name}")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({"starts": options.starts, "cases": cases}, indent=1) + "\n")
    slow = [name for name, one in cases.items() if one["ratio"] > options.most]
    if slow:
        print(f"first_call.py: the first call takes more than {options.most:g} times the p99: {', '.join(slow)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
