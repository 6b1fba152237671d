#!/usr/bin/env python3
"""Draws result files of normbench as SVG: bars against other libraries, size sweeps, the ladder, the roofline."""

import argparse
import pathlib
import sys

import bench_results

COLOURS = {"normd": "#1b6ca8", "torch": "#d1495b", "torch_compile": "#edae49", "cudnn": "#66a182", "liger": "#8d6a9f",
           "quack": "#7d8597"}
LABELS = {"torch": "PyTorch eager", "torch_compile": "torch.compile", "cudnn": "cuDNN", "liger": "Liger",
          "quack": "QuACK"}
TITLES = {"rms_norm": "RMSNorm", "layer_norm": "LayerNorm", "batch_norm": "BatchNorm"}


def start_matplotlib():
    try:
        import matplotlib
    except ImportError:
        sys.exit("normbench plot: matplotlib is needed (Debian: python3-matplotlib, else: pip install matplotlib)")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({
        "svg.fonttype": "none", "svg.hashsalt": "normbench", "font.family": "sans-serif", "font.size": 9,
        "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.grid.axis": "y",
        "grid.color": "#dddddd", "axes.axisbelow": True, "legend.frameon": False, "figure.facecolor": "white",
    })
    return pyplot


def save(pyplot, figure, folder, name):
    path = folder / f"{name}.svg"
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)
    # matplotlib ends lines with blanks.
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")
    return path


def implementations(rows):
    present = {row["impl"] for row in rows}
    return [impl for impl in COLOURS if impl in present]


def cases_in_order(rows):
    """{case: {impl: row}}, in the file's order."""
    cases = {}
    for row in rows:
        cases.setdefault(bench_results.case_of(row), {})[row["impl"]] = row
    return cases


def label_of(row):
    extra = [text for text in (row["layout"].upper() if row["layout"] else "", row["variant"]) if text]
    if row["op"] != "batch_norm" and row["weight_dtype"] != row["dtype"]:
        extra.append(f"{row['weight_dtype']} weights")
    return bench_results.shape_text(row["shape"]) + "".join(f" {text}" for text in extra)


def draw_bars(pyplot, report, folder):
    """One picture for each op, direction and element type: share of a same-size copy, shape by shape."""
    groups = {}
    for row in report["rows"]:
        if row["variant"] != "graph" and row["dtype"] in ("f32", "bf16") and row["impl"] in COLOURS:
            groups.setdefault((row["op"], row["direction"], row["dtype"]), []).append(row)
    paths = []
    for (op, direction, dtype), rows in groups.items():
        cases, impls = list(cases_in_order(rows).values()), implementations(rows)
        figure, axes = pyplot.subplots(figsize=(max(5.0, 0.16 * len(cases) * (len(impls) + 1.6)), 3.6))
        width = 0.84 / len(impls)
        for position, impl in enumerate(impls):
            places = [x - 0.42 + (position + 0.5) * width for x in range(len(cases))]
            heights = [case[impl]["share_of_same_size_copy"] if impl in case else 0.0 for case in cases]
            axes.bar(places, heights, width, color=COLOURS[impl], label=LABELS.get(impl, impl))
        axes.axhline(1.0, color="#555555", linewidth=0.8, linestyle="--")
        axes.set_xticks(range(len(cases)), [label_of(next(iter(case.values()))) for case in cases], rotation=60,
                        ha="right", rotation_mode="anchor", fontsize=7.5)
        axes.set_xlim(-0.6, len(cases) - 0.4)
        axes.set_ylabel("speed, share of a copy of the same bytes")
        axes.set_title(f"{TITLES[op]} {direction}, {dtype}, {report['device']}, cold cache")
        axes.legend(ncols=len(impls), loc="lower left", bbox_to_anchor=(0.0, 1.06))
        paths.append(save(pyplot, figure, folder, f"{op}_{direction}_{dtype}"))
    return paths


def size_of(row):
    """What a sweep runs over: the hidden size, or a channel's values."""
    if row["op"] != "batch_norm":
        return row["shape"][1]
    values = 1
    for extent in row["shape"]:
        values *= extent
    return values // row["shape"][1]


def draw_sweeps(pyplot, report, folder):
    """Speed over the hidden size (of a channel, for BatchNorm), one picture for each op; the largest tensor of each size."""
    from matplotlib import ticker

    paths = []
    plain = [row for row in report["rows"]
             if row["variant"] == "" and row["dtype"] in ("f32", "bf16") and row["impl"] in COLOURS]
    for op in TITLES:
        rows = [row for row in plain if row["op"] == op and
                (row["layout"] != "nhwc" if op == "batch_norm" else
                 row["weight_dtype"] == row["dtype"] and row["shape"][1] % 2 == 0)]  # odd sizes stand among the bars
        panels = sorted({(row["direction"], row["dtype"]) for row in rows}, key=lambda panel: (panel[1], panel[0]))
        if not panels:
            continue
        columns = len({direction for direction, _ in panels})
        lines = (len(panels) + columns - 1) // columns
        figure, grid = pyplot.subplots(lines, columns, figsize=(4.6 * columns, 3.2 * lines), sharey=True, squeeze=False)
        for axes, (direction, dtype) in zip(grid.flat, panels):
            for impl in implementations(rows):
                largest = {}
                for row in rows:
                    if (row["direction"], row["dtype"], row["impl"]) == (direction, dtype, impl):
                        known = largest.get(size_of(row))
                        if known is None or row["bytes"] > known["bytes"]:
                            largest[size_of(row)] = row
                points = sorted((size, row["share_of_same_size_copy"]) for size, row in largest.items())
                if points:
                    axes.plot(*zip(*points), marker="o", markersize=3, linewidth=1.6 if impl == "normd" else 0.9,
                              color=COLOURS[impl], label=LABELS.get(impl, impl))
            axes.axhline(1.0, color="#555555", linewidth=0.8, linestyle="--")
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda size, _: f"{size:g}"))
            axes.tick_params(axis="x", labelsize=7.5, rotation=30)
            axes.set_ylim(0, 1.2)
            axes.set_title(f"{TITLES[op]} {direction}, {dtype}")
            axes.set_xlabel("values of a channel (NCHW, [N, C])" if op == "batch_norm" else "hidden size")
            axes.set_ylabel("speed, share of a copy")
        grid.flat[0].legend(fontsize=7.5)
        figure.tight_layout()
        paths.append(save(pyplot, figure, folder, f"sweep_{op}"))
    return paths


def draw_ladder(pyplot, report, folder):
    """The rungs of each shape from bottom to top, the shipped kernel last."""
    groups = {}
    for rung in report["rungs"]:
        groups.setdefault((rung["op"], rung["direction"], tuple(rung["shape"]), rung["variant"]), []).append(rung)
    columns = 2
    lines = (len(groups) + 1) // columns
    figure, grid = pyplot.subplots(lines, columns, figsize=(11, 2.1 * lines), squeeze=False)
    for axes in grid.flat[len(groups):]:
        axes.set_visible(False)
    for axes, ((op, direction, shape, variant), rungs) in zip(grid.flat, groups.items()):
        rungs = rungs[::-1]
        shares = [rung["share_of_same_size_copy"] for rung in rungs]
        colours = [COLOURS["normd"] if rung["id"] == "normd" else "#9db4c0" for rung in rungs]
        axes.barh(range(len(rungs)), shares, color=colours)
        axes.set_yticks(range(len(rungs)), [f"{rung['id']} {rung['name']}" for rung in rungs], fontsize=8)
        for place, (share, rung) in enumerate(zip(shares, rungs)):
            axes.text(share + 0.01, place, f"{rung['us']:.0f} us", va="center", fontsize=7)
        axes.axvline(1.0, color="#555555", linewidth=0.8, linestyle="--")
        axes.set_xlim(0, 1.15)
        axes.grid(axis="x")
        axes.grid(visible=False, axis="y")
        axes.set_title(f"{TITLES[op]} {direction} {bench_results.shape_text(shape)}"
                       f"{' with residual' if variant else ''}, f32", fontsize=9)
    figure.supxlabel(f"speed, share of a copy of the same bytes ({report['device']}, cold cache)", fontsize=9)
    figure.tight_layout()
    return [save(pyplot, figure, folder, "ladder")]


def draw_roofline(pyplot, report, folder, measured):
    """Arithmetic per byte against the card's two ceilings; points where a result file has the time."""
    peak, ridge, copy = report["f32_peak_tflops"], report["ridge_flops_per_byte"], report["copy_gbs"]
    figure, axes = pyplot.subplots(figsize=(7.5, 4.6))
    low, high = 0.125, 128.0
    axes.plot([low, ridge, high], [low * copy / 1e3, peak, peak], color="#555555", linewidth=1.2)
    axes.axvline(ridge, color="#bbbbbb", linewidth=0.8, linestyle=":")
    axes.text(ridge * 1.08, peak * 0.2, f"ridge point\n{ridge:.1f} FLOP/byte", fontsize=8)
    axes.text(low * 1.1, low * copy / 1e3 * 1.7, f"copy {copy:.0f} GB/s", fontsize=8, rotation=33)
    axes.text(ridge * 1.3, peak * 1.08, f"f32 peak {peak:.0f} TFLOP/s", fontsize=8)
    markers = {"rms_norm": "o", "layer_norm": "s", "batch_norm": "^"}
    colours = {"forward": "#1b6ca8", "backward": "#d1495b", "inference": "#66a182"}
    seen = set()
    for kernel in report["kernels"]:
        best = [row["bytes"] / row["us"] / 1e3 for row in measured
                if row["impl"] == "normd" and all(row[name] == kernel[name]
                                                  for name in ("op", "direction", "dtype", "variant"))]
        gbs = max(best, default=copy)
        name = f"{TITLES[kernel['op']]} {kernel['direction']}"
        axes.plot(kernel["flops_per_byte"], kernel["flops_per_byte"] * gbs / 1e3, markers[kernel["op"]],
                  color=colours[kernel["direction"]], markersize=5,
                  markerfacecolor=colours[kernel["direction"]] if best else "white",
                  label=name if name not in seen else None)
        seen.add(name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=10)
    axes.set_xlabel("FLOP per byte moved")
    axes.set_ylabel("TFLOP/s")
    axes.set_title(f"Roofline, {report['device']} (filled: measured, the best shape; open: not measured)")
    axes.grid(which="major", axis="both")
    axes.legend(fontsize=7.5, loc="lower right")
    return [save(pyplot, figure, folder, "roofline")]


def main(arguments):
    parser = argparse.ArgumentParser(prog="normbench plot", description=__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE", help="files of kernels, peers, ladder or roofline")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for the pictures")
    options = parser.parse_args(arguments)
    try:
        reports = [bench_results.read(file) for file in options.files]
    except ValueError as error:
        sys.exit(f"normbench plot: {error}")
    pyplot = start_matplotlib()
    folder = pathlib.Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    measured = [row for report in reports for row in report.get("rows", [])]
    paths = []
    for file, report in zip(options.files, reports):
        if "rows" in report:
            faults = bench_results.check(report, file)
            if faults:
                sys.exit("normbench plot: " + faults[0])
            paths += draw_bars(pyplot, report, folder) + draw_sweeps(pyplot, report, folder)
        elif "rungs" in report:
            paths += draw_ladder(pyplot, report, folder)
        elif "kernels" in report:
            paths += draw_roofline(pyplot, report, folder, measured)
        else:
            sys.exit(f"normbench plot: {file} has no rows, rungs or kernels")
    print(f"{len(paths)} pictures in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
