#!/usr/bin/env python3
"""Writes the tables of README.md that come from result files. Usage: readme_tables.py [--check] [ROOT]

Between `<!-- results: NAME -->` and `<!-- end of results -->` stands the table NAME: summary, plots, rows, channels, graph, slower,
ladder.
--check writes nothing and fails where README.md differs.
"""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "scripts"))
import bench_results  # noqa: E402

OPS = {"rms_norm": "RMSNorm", "layer_norm": "LayerNorm", "batch_norm": "BatchNorm"}
PEERS = {"torch": "PyTorch", "torch_compile": "torch.compile", "cudnn": "cuDNN", "liger": "Liger", "quack": "QuACK"}
REGION = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end of results -->)", re.DOTALL)


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def cases_of(report):
    cases = {}
    for row in report["rows"]:
        cases.setdefault(bench_results.case_of(row), {})[row["impl"]] = row
    return [case for case in cases.values() if "normd" in case]


def best_peer(case):
    """(name, row) of the fastest other library; None without any."""
    peers = [(name, case[impl]) for impl, name in PEERS.items() if impl in case]
    return min(peers, key=lambda peer: peer[1]["us"], default=None)


def median(values):
    values = sorted(values)
    return values[len(values) // 2]


def provenance(report):
    return (f"{report['device']}, {report['date']}, commit {report['commit'][:12]}; a copy moves "
            f"{report['copy_gbs']:.0f} GB/s. `normbench kernels` and `normbench peers`, cold cache, medians.\n\n")


def slower_cases(report):
    """Cases where another library is faster by more than 2 %, and how many have another library's time at all."""
    compared = [(case, best_peer(case)) for case in cases_of(report) if best_peer(case)]
    return [(case, peer) for case, peer in compared if peer[1]["us"] * 1.02 < case["normd"]["us"]], len(compared)


def slower(report):
    cases, compared = slower_cases(report)
    if not cases:
        return f"None of {compared} cases.\n"
    lines = [[bench_results.case_name(case["normd"]), cell(case["normd"]), f"{name} {cell(row)}"] for case, (name, row) in cases]
    return f"{len(cases)} of {compared} cases, by more than 2 %:\n\n" + table(["case", "normd", "faster"], lines)


def summary(report):
    """One line for each op, direction and element type: cases that move more than 64 MiB."""
    groups = {}
    for case in cases_of(report):
        row = case["normd"]
        if row["bytes"] > 64 << 20 and row["variant"] == "" and row["dtype"] in ("f32", "bf16"):
            groups.setdefault((row["op"], row["direction"], row["dtype"]), []).append(case)
    lines = []
    for (op, direction, dtype), cases in groups.items():
        shares = [case["normd"]["share_of_same_size_copy"] for case in cases]
        gains = [peer[1]["us"] / case["normd"]["us"] for case in cases if (peer := best_peer(case))]
        gain = f"{min(gains):.2f}x to {max(gains):.2f}x, median {median(gains):.2f}x" if gains else "not measured"
        lines.append([OPS[op], direction, dtype, str(len(cases)), f"{median(shares):.2f}", f"{min(shares):.2f}", gain])
    faster, compared = slower_cases(report)
    standing = (f"Of {compared} cases that another library was timed on, normd is the fastest, or within 2 % of it, in "
                f"{compared - len(faster)}. Cases over 64 MiB:\n\n") if compared else ""
    return provenance(report) + standing + table(
        ["op", "direction", "type", "shapes", "share of a copy, median", "least", "faster than the best other library"], lines)


def cell(row):
    return f"{row['us']:.1f} us, {row['share_of_same_size_copy']:.2f}"


def detail(report, ops, variants):
    lines = []
    for case in cases_of(report):
        row = case["normd"]
        if row["op"] not in ops or row["variant"] not in variants:
            continue
        peer = best_peer(case)
        mixed = row["weight_dtype"] != row["dtype"] and row["op"] != "batch_norm"
        notes = [text for text in (row["layout"].upper(), row["variant"], "f32 weights" if mixed else "") if text]
        lines.append([OPS[row["op"]], row["direction"], row["dtype"], bench_results.shape_text(row["shape"]),
                      " ".join(notes), cell(row), f"{row['bytes'] / row['us'] / 1e3:.0f}",
                      f"{peer[0]} {cell(peer[1])}" if peer else ""])
    return provenance(report) + table(
        ["op", "direction", "type", "shape", "", "normd: time, share of a same-size copy", "GB/s", "best other library"], lines)


def graph(report):
    lines = []
    for case in cases_of(report):
        row = case["normd"]
        if row["variant"] == "graph" and "empty_kernel" in case:
            empty = case["empty_kernel"]["us"]
            others = ", ".join(f"{name} {case[impl]['us']:.2f}" for impl, name in PEERS.items() if impl in case)
            lines.append([OPS[row["op"]], row["dtype"], bench_results.shape_text(row["shape"]), f"{row['us']:.2f}",
                          f"{empty:.2f}", others])
    return table(["op", "type", "shape", "us in a captured graph", "an empty kernel there", "others"], lines)


def ladder(report):
    """The rungs of every shape in order."""
    lines = []
    for rung in report["rungs"]:
        shape = bench_results.shape_text(rung["shape"]) + (" with residual" if rung["variant"] else "")
        lines.append([f"{OPS[rung['op']]} {rung['direction']} {shape}", rung["id"], rung["name"], f"{rung['us']:.1f}",
                      f"{rung['bytes'] / rung['us'] / 1e3:.0f}", f"{rung['share_of_same_size_copy']:.2f}",
                      rung["registers"], rung["shared_bytes"], rung["occupancy_percent"], rung["changed"]])
    return table(["f32 case", "rung", "", "us", "GB/s", "share of a copy", "registers", "shared bytes", "occupancy %",
                  "what it changes"], lines)


PICTURES = (("rms_norm_backward_bf16", "RMSNorm backward, bf16"), ("layer_norm_forward_bf16", "LayerNorm forward, bf16"),
            ("batch_norm_forward_f32", "BatchNorm training forward, f32"), ("sweep_layer_norm", "LayerNorm over sizes"),
            ("ladder", "the ladder"), ("roofline", "the roofline"))


def plots(results, root):
    """The pictures that are there."""
    present = [(results / "plots" / f"{name}.svg", title) for name, title in PICTURES]
    lines = [f"![{title}]({path.relative_to(root).as_posix()})" for path, title in present if path.exists()]
    return "\n\n".join(lines) + "\n" if lines else "Not measured yet.\n"


def render(name, results, root):
    rows, rungs = results / "h200.json", results / "h200_ladder.json"
    if name == "ladder":
        return ladder(bench_results.read(rungs)) if rungs.exists() else "Not measured yet.\n"
    if name == "plots":
        return plots(results, root)
    if not rows.exists():
        return "Not measured yet.\n"
    report = bench_results.read(rows)
    if name == "summary":
        return summary(report)
    if name == "rows":
        return detail(report, ("rms_norm", "layer_norm"), ("", "residual", "fp8", "fp8_row", "int8"))
    if name == "channels":
        return detail(report, ("batch_norm",), ("",))
    if name == "graph":
        return graph(report)
    if name == "slower":
        return slower(report)
    raise ValueError(f"README.md: no table is called '{name}'")


def main(arguments):
    check = "--check" in arguments
    roots = [argument for argument in arguments if argument != "--check"]
    root = pathlib.Path(roots[0] if roots else pathlib.Path(__file__).resolve().parents[2])
    results = root / "kernels/bench/results"
    differing = 0
    for path in (root / "README.md", results / "README.md"):
        if not path.exists():
            continue
        text = path.read_text()
        fresh = REGION.sub(lambda region: region.group(1) + render(region.group(2), results, root) + region.group(3), text)
        if fresh == text:
            continue
        differing += 1
        if check:
            print(f"{path.relative_to(root)} differs from the result files: run kernels/bench/readme_tables.py")
        else:
            path.write_text(fresh)
            print(f"{path.relative_to(root)} written")
    return 1 if check and differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
