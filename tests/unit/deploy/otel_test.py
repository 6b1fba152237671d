#!/usr/bin/env python3
"""The Collector's configuration and the rotation of the span log, held against each other. Usage: otel_test.py ROOT NORMD

No Collector runs here: that it knows these components is not tried.
"""

import fnmatch
import re
import unittest

import deploy_case
from deploy_case import ROOT

try:
    import yaml
except ImportError as error:
    deploy_case.skip(f"the Collector's configuration was not read: {error}")

COLLECTOR = ROOT / "deploy/otel/collector.yaml"
ROTATED = re.search(r"^(/\S+) \{$", (ROOT / "deploy/otel/logrotate.conf").read_text(), re.MULTILINE).group(1)


class Otel(unittest.TestCase):
    def setUp(self):
        self.collector = yaml.safe_load(COLLECTOR.read_text())

    def test_pipelines_name_what_is_defined(self):
        service = self.collector["service"]
        self.assertEqual(service["extensions"], list(self.collector["extensions"]))
        traces = service["pipelines"].pop("traces")
        self.assertEqual(service["pipelines"], {})
        for kind in ("receivers", "processors", "exporters"):
            self.assertEqual(traces[kind], list(self.collector[kind]), kind)
        self.assertIn(self.collector["receivers"]["otlpjsonfile"]["storage"], self.collector["extensions"])

    def test_the_file_is_read_before_and_after_it_is_renamed(self):
        globs = self.collector["receivers"]["otlpjsonfile"]["include"]
        for name in (ROTATED, ROTATED + ".1"):
            self.assertTrue(any(fnmatch.fnmatchcase(name, glob) for glob in globs), name)
        self.assertIn(f"--trace_log={ROTATED}", COLLECTOR.read_text())
        self.assertIn(f"--trace_log={ROTATED}", (ROOT / "README.md").read_text())


if __name__ == "__main__":
    deploy_case.main()
