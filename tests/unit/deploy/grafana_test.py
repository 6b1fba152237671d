#!/usr/bin/env python3
"""The dashboards against Grafana's own schema, as its SDK has it. Usage: grafana_test.py ROOT NORMD

Grafana itself is in no package of Debian or PyPI; dashboards_test.py asks the queries of each panel.
"""

import enum
import json
import re
import types
import typing
import unittest

import deploy_case
from deploy_case import ROOT

try:
    from grafana_foundation_sdk.cog import plugins
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models import dashboard
except ImportError as error:
    deploy_case.skip(f"the dashboards were not held against Grafana's schema: {error}")

plugins.register_default_plugins()
# Not of the schema: what Grafana itself writes beside a variable's query, and the data source's own options of an annotation.
FREE = re.compile(r"/templating/list(_val)?/\d+/definition|/annotations/list(_val)?/\d+/(titleFormat|step)")


def differences(before, after, path=""):
    """What the schema did not take in: fields that it does not know."""
    if isinstance(before, dict):
        for name, value in before.items():
            here = f"{path}/{name}"
            if not isinstance(after, dict) or name not in after:
                if not FREE.fullmatch(here):
                    yield here
            else:
                yield from differences(value, after[name], here)
    elif isinstance(before, list):
        for i, value in enumerate(before):
            yield from differences(value, after[i], f"{path}/{i}")
    elif before != after:
        yield path


def faults(value, hint, path=""):
    """Values that are not of the type which the schema gives them."""
    origin = typing.get_origin(hint)
    if hint is typing.Any or hint is object:
        return
    if origin in (typing.Union, types.UnionType):
        tried = [list(faults(value, one, path)) for one in typing.get_args(hint)]
        if all(tried):
            yield from tried[0]
    elif origin is list or origin is dict:
        if not isinstance(value, origin):
            yield path
            return
        one = typing.get_args(hint)[-1]
        for key, inner in value.items() if origin is dict else enumerate(value):
            yield from faults(inner, one, f"{path}/{key}")
    elif origin is typing.Literal:
        if value not in typing.get_args(hint):
            yield path
    elif not isinstance(hint, type):
        return
    elif issubclass(hint, enum.Enum):
        if value not in [one.value for one in hint] and value not in list(hint):
            yield path
    elif hint in (int, float, str, bool, type(None)):
        if not isinstance(value, (int, float) if hint is float else hint) or (isinstance(value, bool) and hint is not bool):
            yield path
    elif isinstance(value, dict) and hasattr(hint, "from_json"):
        # What stands in lists the SDK leaves as it is.
        yield from mismatches(value, hint, path)
    elif isinstance(value, hint):
        # A class of the SDK, or one that a plugin put in its place.
        for name, inner in typing.get_type_hints(type(value)).items():
            yield from faults(getattr(value, name), inner, f"{path}/{name}")
        for name in ("options", "custom"):
            inner = getattr(value, name, None)
            if hasattr(inner, "to_json"):
                yield from faults(inner, type(inner), f"{path}/{name}")
    else:
        yield path


def mismatches(value, kind, path=""):
    """Fields that a class of the SDK does not know, and values of another type."""
    model = kind.from_json(value)
    yield from differences(value, json.loads(JSONEncoder().encode(model)), path)
    yield from faults(model, kind, path)


def wrong(text):
    return list(mismatches(json.loads(text), dashboard.Dashboard))


class Schema(unittest.TestCase):
    def test_each_dashboard_is_of_it(self):
        files = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
        self.assertGreaterEqual(len(files), 4)
        for file in files:
            self.assertEqual(wrong(file.read_text()), [], file.name)

    def test_faults_are_seen(self):
        text = (ROOT / "deploy/grafana/dashboards/overview.json").read_text()
        for before, after, where in (('"graphMode"', '"graphMood"', "/options/graphMood"), ('"colorMode": "value"', '"colorMode": "vale"', "/options/color_mode"),
                                     ('"drawStyle": "line"', '"drawStyle": "lines"', "/custom/draw_style"), ('"gridPos"', '"gridPlace"', "/gridPlace"),
                                     ('"editable": true', '"editable": "yes"', "/editable"), ('"mode": "absolute"', '"mode": "exact"', "/thresholds/mode")):
            self.assertIn(before, text)
            found = wrong(text.replace(before, after))
            self.assertTrue(any(path.endswith(where) for path in found), (where, found[:5]))


if __name__ == "__main__":
    deploy_case.main()
