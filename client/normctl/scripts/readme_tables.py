#!/usr/bin/env python3
"""Writes the table of README.md that comes from what bars.py measured. Usage: readme_tables.py [--check] [ROOT]

It stands between `<!-- serving results -->` and `<!-- end of serving results -->`. --check writes nothing and fails where README.md
differs.
"""

import json
import pathlib
import re
import sys

import bars

REGION = re.compile(r"(<!-- serving results -->\n).*?(<!-- end of serving results -->)", re.DOTALL)
RESULTS = "client/normctl/results"
ECHOES = (("1mib_1", "1 MiB, 1 connection x 2 in flight"), ("1mib_4", "1 MiB, 4 connections x 2"),
          ("1mib_1_deep", "1 MiB, 1 connection x 4"), ("1mib_4_deep", "1 MiB, 4 connections x 4"),
          ("64mib_1", "64 MiB, 1 connection x 2"), ("64mib_4", "64 MiB, 4 connections x 2"))


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def rate(report):
    return f"{report['requests_per_second']:,.0f} calls/s"


def volume(report):
    return f"{report['gb_per_second']:.2f} GB/s"


def p50(report):
    return f"{report['latency_us']['p50']:,.0f} us"


def of_echo(report):
    """Of the echo's calls/s: the median of the rounds and their spread, or of a run without rounds the whole."""
    spread = report["over_echo"].get("rounds")
    if not spread:
        return f"{report['over_echo']['requests_per_second_ratio']:.2f}"
    return f"{spread['median']:.2f} ({spread['min']:.2f} to {spread['max']:.2f})"


def longer(report):
    """Than the echo: the median of the pairs, or without pairs the difference of the medians."""
    pairs = report["over_echo"].get("pairs_us")
    return f"{pairs['p50'] if pairs else report['over_echo']['p50_us']:+.0f} us"


def rows(report):
    """One for each load that was measured: load, normd, what it is compared with, comparison, bar."""
    runs = {group: {name: run["report"] for name, run in report.get(group, {}).items() if "report" in run}
            for group in ("normd", "normd_beside_peer", "peer")}
    normd, beside, peer = runs["normd"], runs["normd_beside_peer"], runs["peer"]
    lines = []
    for name, title in ECHOES:
        if name in normd:
            one = normd[name]
            lines.append([title, volume(one), f"echo of the same messages: {volume(one['echo'])}",
                          of_echo(one), "0.90"])
    for name, title, bar in (("small", "empty echo", "0.75"), ("small_same", "echo of the same messages", "")):
        if name in normd:
            one = normd[name]
            lines.append(["4x4096, 16 connections x 8", rate(one), f"{title}: {rate(one['echo'])}",
                          of_echo(one), bar])
    if "lone" in normd:
        one = normd["lone"]
        lines.append(["4x4096, one call at a time, p50", p50(one), f"echo: {p50(one['echo'])}",
                      longer(one), "+40 us"])
    for name, title in (("weights", "16 connections x 8"), ("weights_stream", "16 streams x 32")):
        if name in normd:
            lines.append([f"4x4096, 64 weights in turn, {title}", rate(normd[name]), "launches/request",
                          f"{normd[name]['launches_per_request']:.3f}", "0.15"])
    lines += saturated(report)
    if "flood" in normd:
        one = normd["flood"]
        lines.append([f"4x4096 at {one['options']['rate']:,.0f}/s beside a flood, p99", f"{one['latency_us']['p99']:,.0f} us",
                      f"alone: {one['alone']['latency_us']['p99']:,.0f} us", f"{one['over_alone']['p99_ratio']:.1f}x", "3x"])
    if "flood_large" in normd:
        one, alone = normd["flood_large"], report["normd"]["flood_large"]["alone"]
        lines.append([f"4x4096 at {one['options']['rate']:,.0f}/s beside 64 MiB over four connections of another process, p99",
                      f"{one['latency_us']['p99']:,.0f} us", f"alone: {alone['latency_us']['p99']:,.0f} us",
                      f"{one['latency_us']['p99'] / alone['latency_us']['p99']:.1f}x", "3x"])
    for name, title, show, bar in (("small", "4x4096, 16 connections x 8", rate, "20x"),
                                   ("large", "64 MiB, 4 connections", volume, "4x"), ("lone", "4x4096, one call at a time, p50", p50, "")):
        if name in beside and name in peer:
            ratio = beside[name]["gb_per_second"] / peer[name]["gb_per_second"]
            lines.append([title, show(beside[name]), f"{peer[name]['server_version']}: {show(peer[name])}", f"{ratio:.1f}x", bar])
    return lines


def saturated(report):
    """The row of `weights` with as many requests in flight as bring the most calls; that there was no such load, where calls still rise."""
    runs = report.get("weights_sweep", [])
    if not runs:
        return []
    full = bars.saturation(runs)
    one = (full or runs[-1]).get("report")
    if one is None:
        return []
    options = one["options"]
    state = "at saturation" if full else "not saturated"
    return [[f"4x4096, 64 weights in turn, {state}, {options['connections']} connections x {options['in_flight']}", rate(one),
             "launches/request", f"{one['launches_per_request']:.3f}", "0.15"]]


CALLS = (("small", "4x4096, 16 connections x 8", rate), ("1mib", "1 MiB, 4 connections x 4", volume),
         ("large", "64 MiB, 4 connections", volume), ("lone", "4x4096, one call at a time, p50", p50))


def calls(report):
    """The table of normd beside Triton, which bars.py measures by norm_call_bench; empty without Triton."""
    triton = report.get("triton", {})
    lines = []
    for name, title, show in CALLS:
        one = [triton.get(name, {}).get(server, {}).get("report") for server in ("echo", "normd", "triton")]
        if all(one):
            ratio = one[1]["requests_per_second"] / one[2]["requests_per_second"]
            lines.append([title, *map(show, one), f"{ratio:.1f}x"])
    if not lines:
        return ""
    return (f"\nOne encoded message again and again by `norm_call_bench`, {report['date']}, commit {report['commit'][:12]}, GB/s of messages "
            f"both ways:\n\n" + table(["load", "echo of normd", "normd", triton["server_version"], "normd over Triton"], lines))


STAGES = ("outside", "decode", "queue", "copy_in", "kernel", "copy_out", "other")


def stages(report):
    """Where a request's time goes, for the loads that have stages."""
    lines = []
    for name, title in (("lone", "4x4096, one call at a time"), ("1mib_1", "1 MiB, 1 connection x 2"),
                        ("64mib_1", "64 MiB, 1 connection x 2")):
        one = report["normd"].get(name, {}).get("report")
        if one is None or not one.get("stages_us"):
            continue
        server = one["server_stages_us"]
        lines.append([title] + [f"{one['stages_us'][stage]['p50']:,.0f}" for stage in STAGES] +
                     [f"{server[stage]:,.0f}" for stage in ("encode", "send")])
    if not lines:
        return ""
    return ("\nWhere a request's time goes, p50 in us (encode and send: means, parts of outside):\n\n" +
            table(["load", *STAGES, "encode", "send"], lines))


def render(report):
    cores = f"{report['cores']} cores for server and client"
    if report.get("server_cpus") or report.get("client_cpus"):
        cores = f"server on cores {report['server_cpus'] or 'all'}, client on {report['client_cpus'] or 'all'}"
    in_rounds = any((run.get("report", {}).get("over_echo") or {}).get("rounds") for run in report["normd"].values())
    note = " Beside the median ratio of the rounds the least and the greatest." if in_rounds else ""
    head = (f"{report['device']}, {cores}, {report['date']}, commit {report['commit'][:12]}; "
            f"RMSNorm of bf16 over loopback, GB/s both ways.{note}\n\n")
    return head + table(["load", "normd", "compared with", "", "bar"], rows(report)) + stages(report)


def main(arguments):
    check = "--check" in arguments
    roots = [argument for argument in arguments if argument != "--check"]
    root = pathlib.Path(roots[0] if roots else pathlib.Path(__file__).resolve().parents[3])
    readme = root / "README.md"
    text = readme.read_text()
    path = root / RESULTS / "h200.json"
    tables = "Not measured yet.\n"
    if path.exists():
        triton = root / RESULTS / "h200_triton.json"
        tables = render(json.loads(path.read_text())) + calls(json.loads((triton if triton.exists() else path).read_text()))
    fresh = REGION.sub(lambda region: region.group(1) + tables + region.group(2), text)
    if fresh == text:
        return 0
    if check:
        print(f"README.md differs from {RESULTS}: run client/normctl/scripts/readme_tables.py")
        return 1
    readme.write_text(fresh)
    print("README.md written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
