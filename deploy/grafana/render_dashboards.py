#!/usr/bin/env python3
"""Draws Grafana dashboards without Grafana: the panels of the same JSON, their queries answered by a Prometheus.

Usage: render_dashboards.py --prometheus URL --out FOLDER [--from TIME] [--to TIME] [--rate-interval 1m] [--var NAME=VALUE]...
       DASHBOARD.json...

TIME is in seconds since the epoch, or less than zero: before now (--from=-1800 --to=0 by default). --var gives a variable of the
dashboards a value; job and instance are every one by default. Writes FOLDER/NAME.png for each dashboard. It knows what the
dashboards of this project use: stat, timeseries and table panels, stacking, dashed targets, units.
"""

import argparse
import json
import math
import pathlib
import re
import sys
import time
import urllib.parse
import urllib.request

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import matplotlib.ticker  # noqa: E402

BACKGROUND, PANEL, GRID, TEXT, FAINT = "#111217", "#181b1f", "#2c3235", "#d8d9da", "#8e9197"
PALETTE = ["#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#8ab8ff", "#c0d8ff", "#96d98d", "#ffb357", "#ff7383", "#ca95e5",
           "#37872d", "#e0b400", "#1f60c4", "#fa6400", "#c4162a", "#8f3bb8"]
NAMED = {"green": "#73bf69", "orange": "#ff9830", "red": "#f2495c", "blue": "#8ab8ff"}
COLUMN, ROW = 0.78, 0.36  # inches of Grafana's grid
LEGEND_LINES = 6

SCALES = {
    "bytes": (1024, ["B", "KiB", "MiB", "GiB", "TiB"], ""),
    "Bps": (1000, ["B", "kB", "MB", "GB", "TB"], "/s"),
    "short": (1000, ["", " K", " Mil", " Bil"], ""),
    "reqps": (1000, ["", " K", " Mil"], " req/s"),
    "ops": (1000, ["", " K", " Mil"], " ops/s"),
    "rowsps": (1000, ["", " K", " Mil"], " rows/s"),
    "watt": (1000, [" W", " kW"], ""),
}


def shown(value, unit, decimals=None):
    """`value` as Grafana writes it."""
    if value is None or math.isnan(value):
        return "-"
    if unit == "percentunit":
        return f"{value * 100:.{decimals if decimals is not None else 3}g}%"
    if unit == "s":
        for limit, factor, name in ((1e-3, 1e6, "us"), (1, 1e3, "ms"), (120, 1, "s"), (7200, 1 / 60, "min"), (math.inf, 1 / 3600, "h")):
            if abs(value) < limit:
                return f"{value * factor:.3g} {name}" if value else "0 s"
    base, names, rest = SCALES.get(unit, SCALES["short"])
    at = 0
    while abs(value) >= base and at + 1 < len(names):
        value, at = value / base, at + 1
    gap = " " if names[at] and not names[at].startswith(" ") else ""
    number = f"{value:.{decimals}f}" if decimals is not None else f"{value:.4g}" if abs(value) >= 1 else f"{value:.3g}"
    return f"{number}{gap}{names[at]}{rest}"


def panels(dashboard):
    """The panels that ask something, in the order of the file."""
    return [panel for panel in dashboard["panels"] if panel.get("targets")]


def substitute(expr, variables):
    """`expr` with Grafana's variables replaced; one without a value is an error."""
    def value(match):
        name = match.group(1) or match.group(2)
        if name not in variables:
            raise ValueError(f"variable ${name} has no value in {expr}")
        return variables[name]
    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", value, expr)


def legend(template, labels):
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda match: labels.get(match.group(1), ""), template).strip() or "value"


def ask(url, path, **parameters):
    with urllib.request.urlopen(f"{url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=60) as reply:
        return json.load(reply)["data"]["result"]


class Ticks(matplotlib.ticker.MaxNLocator):
    """Round numbers of the unit that they are written in."""

    def __init__(self, base):
        super().__init__(4)
        self.base = base

    def tick_values(self, low, high):
        unit = self.base ** max(0, int(math.log(max(high, 1), self.base)))
        return [tick * unit for tick in super().tick_values(low / unit, high / unit)]


class Picture:
    def __init__(self, dashboard, url, start, end, variables):
        self.dashboard, self.url, self.start, self.end, self.variables = dashboard, url, start, end, variables
        self.rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"])
        self.figure = plt.figure(figsize=(24 * COLUMN, (self.rows + 2) * ROW), facecolor=BACKGROUND)

    def box(self, grid, left=0.08, bottom=0.0, right=0.08, top=0.0):
        """Figure coordinates of a place in the grid, less margins in inches."""
        width, height = self.figure.get_size_inches()
        x, y = grid["x"] * COLUMN + left, (grid["y"] + 2) * ROW + top
        w, h = grid["w"] * COLUMN - left - right, grid["h"] * ROW - top - bottom
        return [x / width, 1 - (y + h) / height, w / width, h / height]

    def frame(self, panel):
        axes = self.figure.add_axes(self.box(panel["gridPos"], 0.05, 0.05, 0.05, 0.05), facecolor=PANEL, xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set_color(GRID)
        axes.text(0.10 / (panel["gridPos"]["w"] * COLUMN), 1 - 0.20 / (panel["gridPos"]["h"] * ROW), panel["title"], transform=axes.transAxes,
                  color=TEXT, fontsize=9.5, fontweight="bold", va="center")
        return axes

    def series(self, target):
        step = max((self.end - self.start) / 240, 0.25)
        expr = substitute(target["expr"], self.variables)
        found = ask(self.url, "query_range", query=expr, start=self.start, end=self.end, step=step)
        result = []
        for one in found:
            points = dict((float(at), float(value)) for at, value in one["values"])
            times = [self.start + step * i for i in range(int((self.end - self.start) / step) + 1)]
            values = [next((points[p] for p in (round(t, 3), t) if p in points), math.nan) for t in times]
            result.append((legend(target["legendFormat"], one["metric"]), [t - self.start for t in times], values))
        return sorted(result)

    def draw_timeseries(self, panel):
        self.frame(panel)
        defaults = panel["fieldConfig"]["defaults"]
        dashed = {override["matcher"]["options"] for override in panel["fieldConfig"]["overrides"]}
        stacked = defaults["custom"]["stacking"]["mode"] == "normal"
        log = defaults["custom"]["scaleDistribution"]["type"] == "log"
        lines = [(name, times, values, target["refId"] in dashed) for target in panel["targets"] for name, times, values in self.series(target)]
        # The largest first, for colours and legend; what is zero throughout needs no entry.
        weight = {}
        for name, _, values, _ in lines:
            weight[name] = max(weight.get(name, 0), *(abs(value) for value in values if not math.isnan(value)), 0)
        names = sorted(weight, key=lambda name: (-weight[name], name))
        moving = [name for name in names if weight[name] > 0] or names[:1]
        columns = 2 if panel["gridPos"]["w"] < 12 else 3
        listed = moving[:LEGEND_LINES * columns]
        legend_inches = 0.15 * math.ceil(len(listed) / columns) + 0.08
        axes = self.figure.add_axes(self.box(panel["gridPos"], 0.85, 0.36 + legend_inches, 0.18, 0.40), facecolor=PANEL)
        colors = {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(names)}
        below, handles = None, {}
        for name, times, values, is_dashed in sorted(lines, key=lambda line: names.index(line[0])):
            if stacked and not is_dashed:
                filled = [0 if math.isnan(value) else value for value in values]
                below = below or [0] * len(filled)
                top = [low + value for low, value in zip(below, filled)]
                axes.fill_between(times, below, top, color=colors[name], alpha=0.35, linewidth=0)
                handles[name], = axes.plot(times, top, color=colors[name], linewidth=1)
                below = top
            else:
                handles[name], = axes.plot(times, values, color=colors[name], linewidth=1.2, linestyle=(0, (5, 3)) if is_dashed else "-")
        axes.set_xlim(0, self.end - self.start)
        if log:
            base = 1024 if defaults["unit"] == "bytes" else 10
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(matplotlib.ticker.LogLocator(base, numticks=6))
            axes.yaxis.set_minor_locator(matplotlib.ticker.NullLocator())
        else:
            axes.set_ylim(defaults.get("min"), max(axes.get_ylim()[1], 1e-9))
            axes.yaxis.set_major_locator(Ticks(SCALES.get(defaults["unit"], SCALES["short"])[0]))
        axes.yaxis.set_major_formatter(lambda value, _: shown(value, defaults["unit"]))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g} s")
        axes.grid(color=GRID, linewidth=0.6)
        axes.tick_params(colors=FAINT, labelsize=7.5, length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        if not lines:
            axes.text(0.5, 0.5, "No data", color=FAINT, ha="center", va="center", transform=axes.transAxes)
            return
        labels = [(name if len(name) <= 44 else name[:43] + "…") for name in listed]
        if len(moving) > len(listed):
            labels[-1] += f"  (+{len(moving) - len(listed)} more)"
        axes.legend([handles[name] for name in listed], labels, loc="upper left", bbox_to_anchor=(-0.02, -0.36 / (panel["gridPos"]["h"] * ROW) * 1.25),
                    ncol=columns, fontsize=7, frameon=False, labelcolor=TEXT, borderaxespad=0, handlelength=1.1, columnspacing=1.2, labelspacing=0.25)

    def draw_stat(self, panel):
        axes = self.frame(panel)
        defaults = panel["fieldConfig"]["defaults"]
        lines = [values for target in panel["targets"] for _, _, values in self.series(target)]
        values = [value for value in (lines[0] if lines else []) if not math.isnan(value)]
        last = values[-1] if values else None
        color = NAMED["blue"]
        for threshold in defaults["thresholds"]["steps"]:
            if threshold["value"] is None or (last is not None and last >= threshold["value"]):
                color = NAMED[threshold["color"]]
        axes.text(0.5, 0.44, shown(last, defaults["unit"], defaults.get("decimals")), transform=axes.transAxes, color=color, fontsize=19, ha="center",
                  va="center", fontweight="bold")
        if len(values) > 1:
            spark = self.figure.add_axes(self.box(panel["gridPos"], 0.1, 0.08, 0.1, panel["gridPos"]["h"] * ROW * 0.70), facecolor="none")
            spark.fill_between(range(len(values)), values, min(0, *values), color=color, alpha=0.25, linewidth=0)
            spark.plot(values, color=color, linewidth=1)
            spark.set_axis_off()

    def draw_table(self, panel):
        axes = self.frame(panel)
        units = {o["matcher"]["options"]: o["properties"][0]["value"] for o in panel["fieldConfig"]["overrides"]}
        rows, keys = {}, []
        for target in panel["targets"]:
            for one in ask(self.url, "query", query=substitute(target["expr"], self.variables), time=self.end):
                at = (one["metric"]["job"], one["metric"]["instance"])
                row = rows.setdefault(at, {"job": at[0], "instance": at[1]})
                row.update(one["metric"])
                if target["legendFormat"]:  # else its labels are what is wanted
                    row[target["legendFormat"]] = shown(float(one["value"][1]), units[target["legendFormat"]])
        for row in rows.values():
            keys += [key for key in row if key not in keys]
        shown_keys = sorted(keys, key=lambda key: (key not in ("job", "instance"), 0))
        for column, key in enumerate(shown_keys):
            x = 0.01 + column * 0.98 / len(shown_keys)
            axes.text(x, 0.78, key, transform=axes.transAxes, color=NAMED["blue"], fontsize=9, va="center")
            for line, at in enumerate(sorted(rows)):
                axes.text(x, 0.62 - line * 0.15, rows[at].get(key, ""), transform=axes.transAxes, color=TEXT, fontsize=9, va="center")

    def draw(self, path):
        width, height = self.figure.get_size_inches()
        self.figure.text(0.12 / width, 1 - 0.36 / height, self.dashboard["title"], color=TEXT, fontsize=15, va="center", fontweight="bold")
        self.figure.text(1 - 0.12 / width, 1 - 0.36 / height, self.dashboard["description"], color=FAINT, fontsize=10, va="center", ha="right")
        for panel in self.dashboard["panels"]:
            if panel["type"] == "row":
                left, bottom, _, h = self.box(panel["gridPos"])
                self.figure.text(left, bottom + h / 2, panel["title"], color=TEXT, fontsize=11, va="center")
            else:
                getattr(self, "draw_" + panel["type"])(panel)
        self.figure.savefig(path, dpi=75, facecolor=BACKGROUND)
        plt.close(self.figure)


def render(files, url, start, end, variables, folder):
    """The pictures it wrote."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for file in map(pathlib.Path, files):
        path = folder / f"{file.stem}.png"
        Picture(json.loads(file.read_text()), url, start, end, variables).draw(path)
        written.append(path)
    return written


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prometheus", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--from", dest="start", type=float, default=-1800)
    parser.add_argument("--to", dest="end", type=float, default=0)
    parser.add_argument("--rate-interval", default="1m")
    parser.add_argument("--var", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("dashboards", nargs="+")
    options = parser.parse_args()
    variables = {"job": ".*", "instance": ".*", **dict(var.split("=", 1) for var in options.var), "__rate_interval": options.rate_interval}
    start, end = (at if at > 0 else time.time() + at for at in (options.start, options.end))
    for path in render(options.dashboards, options.prometheus.rstrip("/"), start, end, variables, options.out):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
