#!/usr/bin/env python3
"""Draws what `normctl bench --sweep --json` wrote as SVG: latency against load, each file a colour.

Usage: bench_plot.py SWEEP.json... --out FILE.svg
"""

import argparse
import json
import pathlib
import sys

COLOURS = ("#1b6ca8", "#d1495b", "#66a182", "#edae49", "#8d6a9f", "#7d8597")
PERCENTILES = (("p50", "-"), ("p99", "--"), ("p99.9", ":"))


def read_sweep(path):
    """The report of one file. Errors: ValueError that names the file and what it lacks."""
    try:
        report = json.loads(pathlib.Path(path).read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(report, dict) or "points" not in report or "peak" not in report:
        raise ValueError(f"{path}: has no 'points' and 'peak': it is not of normctl bench --sweep")
    return report


def curve(points, percentile):
    """(requests/s, latency in us) of the points that completed requests, in the order of their rates."""
    done = [point for point in points if point["latency_us"] is not None]
    return [point["requests_per_second"] for point in done], [point["latency_us"][percentile] for point in done]


def echo_curve(points, percentile):
    return curve([point["echo"] for point in points if point["echo"] is not None], percentile)


def label_of(path, report):
    cases = report["peak"]["cases"]
    what = cases[0]["name"] if len(cases) == 1 else f"{len(cases)} cases"
    return f"{pathlib.Path(path).stem}: {what}, {report['options']['transport']}"


def start_matplotlib():
    try:
        import matplotlib
    except ImportError:
        sys.exit("bench_plot.py: matplotlib is needed (Debian: python3-matplotlib, else: pip install matplotlib)")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({
        "svg.fonttype": "none", "svg.hashsalt": "normctl", "font.family": "sans-serif", "font.size": 9,
        "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#dddddd",
        "axes.axisbelow": True, "legend.frameon": False, "figure.facecolor": "white",
    })
    return pyplot


def draw(pyplot, sweeps, out):
    figure, axes = pyplot.subplots(figsize=(7.0, 4.2))
    for number, (path, report) in enumerate(sweeps):
        colour = COLOURS[number % len(COLOURS)]
        for percentile, style in PERCENTILES:
            rates, latencies = curve(report["points"], percentile)
            axes.plot(rates, latencies, style, color=colour, marker="o", markersize=3, linewidth=1.4,
                      label=f"{label_of(path, report)}, {percentile}")
        rates, latencies = echo_curve(report["points"], "p50")
        if rates:
            axes.plot(rates, latencies, "-", color=colour, alpha=0.4, linewidth=1.0,
                      label=f"--echo={report['options']['echo']}, p50")
        axes.axvline(report["peak"]["requests_per_second"], color=colour, linewidth=0.8, linestyle="-.")
    axes.set_yscale("log")
    axes.set_xlim(left=0)
    axes.set_xlabel("requests/s answered (vertical: closed loop)")
    axes.set_ylabel("latency from the intended send time, us")
    report = sweeps[0][1]
    axes.set_title(f"normd {report['server_version']} on {' '.join(report['devices'])}, "
                   f"{report['options']['connections']} connections x {report['options']['in_flight']} in flight")
    axes.legend(fontsize=7.5, loc="upper left")
    figure.savefig(out, bbox_inches="tight", format="svg", metadata={"Date": None})
    pyplot.close(figure)
    # matplotlib ends lines with blanks.
    path = pathlib.Path(out)
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sweeps", nargs="+", metavar="SWEEP.json")
    parser.add_argument("--out", required=True, metavar="FILE.svg")
    options = parser.parse_args(arguments)
    try:
        sweeps = [(path, read_sweep(path)) for path in options.sweeps]
    except ValueError as error:
        sys.exit(f"bench_plot.py: {error}")
    draw(start_matplotlib(), sweeps, options.out)
    print(options.out)


if __name__ == "__main__":
    main(sys.argv[1:])
