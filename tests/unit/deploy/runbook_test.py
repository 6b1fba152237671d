#!/usr/bin/env python3
"""The runbook has a section for each alert, of the parts it promises, and the alerts link to it; what it names exists.

Usage: runbook_test.py SOURCE
"""

import json
import pathlib
import re
import sys
import unittest

SOURCE = pathlib.Path(sys.argv[1])


class RunbookTest(unittest.TestCase):
    def setUp(self):
        self.runbook = (SOURCE / "deploy/runbook.md").read_text()
        self.alerts = (SOURCE / "deploy/prometheus/rules/alerts.yml").read_text()
        self.names = re.findall(r"(?m)^      - alert: (\w+)$", self.alerts)
        self.sections = dict(re.findall(r"(?ms)^## (\w+)\n(.*?)(?=^## |\Z)", self.runbook))

    def test_a_section_for_each_alert_and_a_link_to_it(self):
        self.assertGreater(len(self.names), 10)
        self.assertEqual(self.names, list(self.sections))
        self.assertEqual(re.findall(r"(?m)^          runbook_url: (.*)$", self.alerts),
                         [f"deploy/runbook.md#{name.lower()}" for name in self.names])
        for name, text in self.sections.items():
            for part in ("**Means**", "**Look at**", "**Cure**"):
                self.assertIn(part, text, name)

    def test_its_links_lead_somewhere(self):
        for anchor in re.findall(r"\]\(#([^)]*)\)", self.runbook):
            self.assertIn(anchor, [name.lower() for name in self.names])
        for path in re.findall(r"\]\((?!https:)([^#)]+)\)", self.runbook):
            self.assertTrue((SOURCE / "deploy" / path).exists(), path)

    def test_the_flags_and_panels_it_names_exist(self):
        flags = set(re.findall(r"ABSL_FLAG\(\s*[^,]+(?:<[^>]*>)?,\s*(\w+)", (SOURCE / "server/config/server_config.cc").read_text()))
        for flag in re.findall(r"`--(\w+)`", self.runbook):
            self.assertIn(flag, flags)
        titles = {panel["title"].removesuffix(" (NVIDIA only)") for file in (SOURCE / "deploy/grafana/dashboards").glob("*.json")
                  for panel in json.loads(file.read_text())["panels"]}
        quoted = set(re.findall(r'"([A-Z0-9p][^"\n]*(?:\n[^"\n]*)?)"', self.runbook))
        self.assertGreater(len(quoted), 15)
        for title in quoted:
            self.assertIn(title.replace("\n", " "), titles)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
