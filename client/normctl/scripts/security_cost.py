#!/usr/bin/env python3
"""What encryption and access lists cost: the same loads against three normd of one machine, in turn, and their ratios.

Usage: security_cost.py --normd PROGRAM --normctl PROGRAM [--device cuda|cpu] [--rounds N] [--seconds S]

Certificates are made by the openssl command in a folder that is removed. Prints a Markdown table of medians over the rounds.
"""

import argparse
import contextlib
import pathlib
import secrets
import statistics
import subprocess
import sys
import tempfile

import bars

# name: arguments of bench, share of --seconds.
LOADS = {
    "4x4096 bf16, one call at a time": ("--shape 4x4096 --connections 1 --in-flight 1", 1),
    "4x4096 bf16, 16 connections x 8": ("--shape 4x4096 --connections 16 --in-flight 8", 1),
    "64 MiB, 1 connection x 2": ("--shape 8192x4096 --connections 1 --in-flight 2", 3),
    "64 MiB, 4 connections x 2": ("--shape 8192x4096 --connections 4 --in-flight 2", 3),
}


def make_certificates(folder):
    """ca, server and client, each NAME.pem with NAME.key."""
    def openssl(*arguments):
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, cwd=folder)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", 1, "-subj", "/CN=ca")
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    for name in ("server", "client"):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", 1,
                "-extfile", "names", "-out", f"{name}.pem")


def ways(folder):
    """name: (flags of normd, arguments of bench)."""
    token = folder / "token"
    token.write_text(secrets.token_hex(32) + "\n")
    token.chmod(0o600)
    tls = [f"--tls_cert={folder}/server.pem", f"--tls_key={folder}/server.key"]
    lists = [f"--tls_client_ca={folder}/ca.pem", f"--data_tokens={token}", f"--admin_tokens={token}"]
    trusting = f" --tls-ca {folder}/ca.pem"
    known = f" --tls-cert {folder}/client.pem --tls-key {folder}/client.key --token-file {token}"
    return {"plaintext": ([], ""), "TLS": (tls, trusting), "mutual TLS and tokens": (tls + lists, trusting + known)}


def measure(options, folder):
    make_certificates(folder)
    rates = {}
    with contextlib.ExitStack() as servers:
        running = {}
        for way, (flags, arguments) in ways(folder).items():
            command = [options.normd, f"--device={options.device}", "--metrics_listen=127.0.0.1:0", "--log_level=error",
                       "--device_pool_bytes=4GiB", *flags]
            running[way] = (servers.enter_context(bars.serving(command, folder, "--port_file")), arguments)
        for _ in range(options.rounds):
            for load, (load_arguments, share) in LOADS.items():
                for way, (address, arguments) in running.items():
                    window = f" --warm-up {options.seconds / 4} --duration {share * options.seconds}"
                    run = bars.bench(options.normctl, address, load_arguments + window + arguments)
                    if "error" in run:
                        sys.exit(f"{run['command']}: {run['error']}")
                    report = run["report"]
                    rates.setdefault((load, way), []).append((report["requests_per_second"], report["gb_per_second"]))
    return rates


def table(rates):
    names = list(dict.fromkeys(way for _, way in rates))
    lines = ["| load | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for load in LOADS:
        base = statistics.median(rate for rate, _ in rates[load, names[0]])
        cells = []
        for way in names:
            rate = statistics.median(rate for rate, _ in rates[load, way])
            bytes_rate = statistics.median(rate for _, rate in rates[load, way])
            figure = f"{bytes_rate:.2f} GB/s" if "MiB" in load else f"{rate:,.0f} calls/s"
            cells.append(figure if way == names[0] else f"{figure}, {rate / base:.2f}")
        lines.append(f"| {load} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--normd", required=True)
    parser.add_argument("--normctl", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(table(measure(options, pathlib.Path(folder))))


if __name__ == "__main__":
    main()
