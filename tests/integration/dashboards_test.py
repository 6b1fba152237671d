#!/usr/bin/env python3
"""Every query of every dashboard and rule returns data, asked of a real Prometheus that scrapes servers under load.

Usage: dashboards_test.py SOURCE NORMD NORMCTL [--pictures FOLDER]
  --pictures  instead of testing, draws the dashboards over such data (README.md shows them)
"""

import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE, NORMD, NORMCTL = sys.argv[1:4]
sys.path[:0] = [f"{SOURCE}/tests/support", f"{SOURCE}/deploy/grafana"]

from prometheus_rig import REPLAYED, SCRAPE_SECONDS, Rig  # noqa: E402
from render_dashboards import panels, render, substitute  # noqa: E402

FILES = sorted((pathlib.Path(SOURCE) / "deploy/grafana/dashboards").glob("*.json"))
LOAD_SECONDS = 8
VARIABLES = {"job": ".*", "instance": ".*", "__rate_interval": "4s"}
# Only these may have no data of a machine without a GPU.
GPU_ONLY = {"GPU utilization", "GPU power", "GPU memory", "Device memory pool (NVIDIA only)", "CUDA errors (NVIDIA only)"}


def loaded_rig(exits):
    """A rig that has been under load, and the time of the load."""
    rig = exits.enter_context(Rig(SOURCE, NORMD, NORMCTL))
    start = time.time()
    rig.start_load(LOAD_SECONDS)
    reports = rig.finish_load()
    return rig, reports, start + 2, start + LOAD_SECONDS


def finite(series):
    return [labels for labels, points in series if any(math.isfinite(value) for _, value in points)]


class DashboardsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.rig, cls.reports, cls.start, cls.end = loaded_rig(cls)
        cls.boards = {file.stem: json.loads(file.read_text()) for file in FILES}

    @classmethod
    def enter_context(cls, context):
        value = context.__enter__()
        cls.addClassCleanup(context.__exit__, None, None, None)
        return value

    def ask(self, expr):
        return self.rig.prometheus.range(substitute(expr, VARIABLES), self.start, self.end, SCRAPE_SECONDS)

    def test_the_load_did_what_it_is_for(self):
        overload, *others = self.reports
        self.assertEqual(set(overload["errors"]), {"UNAVAILABLE"})
        for report in others:
            self.assertEqual(report["errors"], {})
            self.assertGreater(report["requests"], 0)

    def test_every_panel_has_data_of_what_runs_here(self):
        asked = 0
        for name, board in self.boards.items():
            for panel in panels(board):
                for target in panel["targets"]:
                    with self.subTest(dashboard=name, panel=panel["title"], query=target["expr"]):
                        asked += 1
                        replicas = finite(self.ask(target["expr"]))
                        self.assertTrue(replicas, "no data")
                        if panel["title"] not in GPU_ONLY:
                            here = substitute(target["expr"], VARIABLES).replace('instance=~".*"', 'instance=~"normd-.*"')
                            self.assertTrue(finite(self.ask(here)), "no data of a machine without a GPU")
        self.assertGreater(asked, 80)

    def test_panels_of_cards_have_the_data_of_an_h200(self):
        found = set()
        for board in self.boards.values():
            for panel in panels(board):
                if panel["title"] not in GPU_ONLY:
                    continue
                found.add(panel["title"])
                for target in panel["targets"]:
                    with self.subTest(panel=panel["title"], query=target["expr"]):
                        self.assertEqual({labels["instance"] for labels in finite(self.ask(target["expr"]))}, {REPLAYED})
        self.assertEqual(found, GPU_ONLY)

    def test_bandwidth_of_the_h200_is_told_apart(self):
        panel = next(p for p in panels(self.boards["kernels"]) if p["title"] == "Share of a copy, by computation and type")
        expr = panel["targets"][0]["expr"].replace("$instance", REPLAYED)
        kinds = {(labels["op"], labels["direction"]) for labels in finite(self.ask(expr))}
        self.assertEqual(kinds, {(op, way) for op in ("rms_norm", "layer_norm", "batch_norm") for way in ("forward", "backward")})

    def test_variables_find_the_replicas(self):
        for board in self.boards.values():
            for variable in board["templating"]["list"]:
                if variable["type"] == "datasource":
                    continue
                metric, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()
                found = {labels[label] for labels in self.rig.prometheus.get("series", **{"match[]": substitute(metric, VARIABLES)})}
                self.assertEqual(found, {"job": {"normd"}, "instance": {"normd-0", "normd-1", REPLAYED}}[label])
            for annotation in board["annotations"]["list"]:
                self.ask(annotation["expr"])  # must be understood

    def test_rules_are_evaluated_and_recorded(self):
        rules = [rule for group in self.rig.prometheus.get("rules")["groups"] for rule in group["rules"]]
        self.assertEqual({rule["health"] for rule in rules}, {"ok"}, rules)
        recorded = [rule["name"] for rule in rules if rule["type"] == "recording"]
        self.assertGreater(len(recorded), 8)
        for name in recorded:
            with self.subTest(rule=name):
                self.assertTrue(finite(self.ask(name)))

    def test_metrics_are_clean_for_promtool(self):
        texts = {name: self.rig.scrape(name) for name in self.rig.addresses}
        texts[REPLAYED] = self.rig.replay.answers[-1].decode()
        for name, text in texts.items():
            with self.subTest(target=name):
                check = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
                self.assertEqual((check.returncode, check.stdout + check.stderr), (0, ""))

    def test_pictures_are_drawn(self):
        with tempfile.TemporaryDirectory() as folder:
            written = render(FILES[:1], self.rig.prometheus.url, self.start, self.end, VARIABLES, folder)
            self.assertEqual([path.name for path in written], [FILES[0].stem + ".png"])
            self.assertEqual(written[0].read_bytes()[:8], b"\x89PNG\r\n\x1a\n")


class ShapeTest(unittest.TestCase):
    """What Grafana would not tell: panels beside each other, and portable."""

    def test_panels_have_a_place_a_unit_and_an_explanation(self):
        for file in FILES:
            board = json.loads(file.read_text())
            taken = {}
            ids = [panel["id"] for panel in board["panels"]]
            self.assertEqual(len(ids), len(set(ids)))
            self.assertEqual(board["uid"], f"normd-{file.stem}")
            for panel in board["panels"]:
                grid = panel["gridPos"]
                for x in range(grid["x"], grid["x"] + grid["w"]):
                    for y in range(grid["y"], grid["y"] + grid["h"]):
                        self.assertLess(x, 24)
                        self.assertEqual(taken.setdefault((x, y), panel["title"]), panel["title"])
                if panel["type"] == "row":
                    continue
                self.assertTrue(panel["description"], panel["title"])
                self.assertTrue(panel["fieldConfig"]["defaults"].get("unit") or panel["type"] == "table", panel["title"])
                for part in (panel, *panel["targets"]):
                    self.assertEqual(part["datasource"], {"type": "prometheus", "uid": "${datasource}"})


def draw_pictures(folder):
    class Exits:
        entered = []

        @classmethod
        def enter_context(cls, context):
            cls.entered.append(context)
            return context.__enter__()

    try:
        rig, _, start, end = loaded_rig(Exits)
        for file in FILES:
            # Kernels are those of the card.
            variables = {**VARIABLES, "instance": REPLAYED if file.stem == "kernels" else ".*"}
            print(*render([file], rig.prometheus.url, start, end, variables, folder))
    finally:
        for context in Exits.entered:
            context.__exit__(None, None, None)


if __name__ == "__main__":
    if sys.argv[4:5] == ["--pictures"]:
        draw_pictures(sys.argv[5])
    else:
        unittest.main(argv=sys.argv[:1], verbosity=2)
