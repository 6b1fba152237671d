#!/usr/bin/env python3
"""Which share of the instructions of a small call goes to recording metrics: normd in valgrind's callgrind, under load.

Usage: metrics_instructions.py --normd PROGRAM --normctl PROGRAM [--seconds S] [--load 'ARGUMENTS OF normctl bench'] [--json FILE]
       [--limit SHARE]

Instructions in user mode are counted, one by one, so that a busy machine changes nothing; what the kernel does for a call comes on
top and makes the share of a call's time smaller. Printed are the instructions of the whole process for a call, those of them that
are under the methods of Metrics which calls use (none of these calls another), and those of a call to a second normd with
--record_metrics=false. PROGRAM needs its symbols. --limit: exit 1 when recording takes more than SHARE of the instructions.
"""

import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from bars import bench

SMALL = "--shape 4x64 --dtype f32 --connections 2 --in-flight 4"
RECORDING = re.compile(r"^ *([\d,]+) \([^)]*\)  \S*norm::server::Metrics::((?:Record|Add|Set)\w+)\(", re.MULTILINE)
TOTAL = re.compile(r"^ *([\d,]+) \([^)]*\)  PROGRAM TOTALS$", re.MULTILINE)


def number(text):
    return int(text.replace(",", ""))


def profile(options, folder, flags):
    """(calls, instructions, {method of Metrics: instructions}) of a server that starts with these flags."""
    folder = pathlib.Path(folder)
    ports, output = folder / "ports", folder / "callgrind.out"
    server = subprocess.Popen(["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={output}", options.normd,
                               "--device=cpu", "--cpu_threads=1", "--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0",
                               f"--port_file={ports}", *flags], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        while not ports.exists():
            if server.poll() is not None:
                raise RuntimeError(f"normd ended with {server.returncode} before it was ready: {server.stdout.read()}")
            time.sleep(0.02)
        address = dict(line.split("=", 1) for line in ports.read_text().split())["grpc"]
        switch = ["callgrind_control", "-i"]
        subprocess.run([*switch, "on", str(server.pid)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        run = bench(options.normctl, address, f"{options.load} --warm-up 0 --duration {options.seconds:g}")
        subprocess.run([*switch, "off", str(server.pid)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    finally:
        server.terminate()
        server.communicate()
    if "error" in run or run["report"]["errors"]:
        raise RuntimeError(run.get("error") or f"calls failed: {run['report']['errors']}")
    text = subprocess.run(["callgrind_annotate", "--inclusive=yes", "--threshold=100", output], check=True, stdout=subprocess.PIPE,
                          text=True).stdout
    return run["report"]["requests"], number(TOTAL.search(text).group(1)), {name: number(count) for count, name in RECORDING.findall(text)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--normd", required=True)
    parser.add_argument("--normctl", required=True)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--load", default=SMALL)
    parser.add_argument("--json")
    parser.add_argument("--limit", type=float)
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("metrics_instructions.py: no valgrind here (Debian's package valgrind)", file=sys.stderr)
        return 77

    with tempfile.TemporaryDirectory() as folder:
        calls, instructions, methods = profile(options, folder, [])
    with tempfile.TemporaryDirectory() as folder:
        calls_off, instructions_off, _ = profile(options, folder, ["--record_metrics=false"])
    if "RecordRequest" not in methods:
        print(f"metrics_instructions.py: {options.normd} has no symbols, or records nothing", file=sys.stderr)
        return 1
    recording = sum(methods.values())
    share = recording / instructions
    print(f"recording: {calls} calls, {instructions / calls:.0f} instructions each, {recording / calls:.0f} of them in Metrics: {share:.2%}")
    for name, count in sorted(methods.items(), key=lambda item: -item[1]):
        print(f"  {name}: {count / calls:.0f}")
    print(f"--record_metrics=false: {calls_off} calls, {instructions_off / calls_off:.0f} instructions each")
    if options.json:
        report = {"load": options.load, "calls": calls, "instructions": instructions, "methods": methods, "share": share,
                  "off": {"calls": calls_off, "instructions": instructions_off}}
        pathlib.Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    if options.limit is not None and share > options.limit:
        print(f"recording takes more than {options.limit:.1%} of the instructions of a call")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
