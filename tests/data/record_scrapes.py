#!/usr/bin/env python3
"""Records what /metrics of a loaded normd says every half second: h200_scrapes.tar.xz, when run on an NVIDIA H200.

Usage: record_scrapes.py NORMD NORMCTL OUT.tar.xz [--device cuda|cpu]

The load: mix.txt on six connections, a stream on two, large tensors on three, and for two seconds a burst that the queue of 96
requests does not hold.
"""

import argparse
import io
import pathlib
import subprocess
import tarfile
import tempfile
import time
import urllib.request

SCRAPES, STEP_SECONDS = 18, 0.5
LARGE = """
op=rms_norm   shape=8192x4096 dtype=bf16 weight=inline share=4
op=layer_norm shape=8192x4096 dtype=bf16 weight=inline bias=inline share=3
op=layer_norm shape=4096x4096 dtype=f32 weight=inline bias=inline share=2
op=rms_norm   shape=4096x4096 dtype=bf16 direction=backward weight=inline share=2
op=layer_norm shape=4096x4096 dtype=f16 direction=backward weight=inline bias=inline share=2
op=batch_norm shape=32x64x56x56 dtype=f32 weight=inline bias=inline running=inline share=2
op=batch_norm shape=32x64x56x56 dtype=bf16 direction=backward weight=inline bias=inline
op=rms_norm   shape=64x4096 dtype=f64 weight=inline share=2
"""
SMALL = pathlib.Path(__file__).with_name("mix.txt")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("normd")
    parser.add_argument("normctl")
    parser.add_argument("out")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ports, large = pathlib.Path(folder, "ports"), pathlib.Path(folder, "large.txt")
        large.write_text(LARGE)
        normd = subprocess.Popen([options.normd, f"--device={options.device}", "--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0",
                                  "--max_queue_requests=96", f"--port_file={ports}"], stdout=subprocess.DEVNULL)
        try:
            while not ports.exists():
                if normd.poll() is not None:
                    raise RuntimeError(f"normd ended with {normd.returncode} before it was ready")
                time.sleep(0.02)
            address = dict(line.split("=", 1) for line in ports.read_text().split())
            # When each load begins, and its arguments.
            loads = [
                (0.5, f"--mix {SMALL} --connections 6 --in-flight 4 --duration 7.5"),
                (1.0, "--shape 32x4096 --transport stream --connections 2 --in-flight 8 --duration 6.5"),
                (1.0, f"--mix {large} --connections 3 --in-flight 2 --duration 5"),
                (4.0, f"--mix {SMALL} --connections 16 --in-flight 24 --duration 2"),
            ]
            running, scrapes = [], []
            start = time.monotonic()
            for number in range(SCRAPES):
                time.sleep(max(0.0, start + number * STEP_SECONDS - time.monotonic()))
                while loads and loads[0][0] <= number * STEP_SECONDS:
                    command = [options.normctl, "bench", "--server", address["grpc"], "--warm-up", "0", *loads.pop(0)[1].split()]
                    running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
                with urllib.request.urlopen(f"http://{address['metrics']}/metrics", timeout=10) as reply:
                    scrapes.append(reply.read())
            for load in running:
                load.wait()
        finally:
            normd.terminate()
            normd.wait()
    with tarfile.open(options.out, "w:xz") as tar:
        for number, text in enumerate(scrapes):
            member = tarfile.TarInfo(f"scrapes/{number:02d}.txt")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))


if __name__ == "__main__":
    main()
