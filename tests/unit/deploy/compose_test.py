#!/usr/bin/env python3
"""The compose file, read by Docker Compose itself. Usage: compose_test.py ROOT NORMD"""

import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import deploy_case
from deploy_case import ROOT

try:
    import yaml
except ImportError as error:
    deploy_case.skip(f"the compose file was not read: {error}")

FILE = ROOT / "deploy/compose/compose.yaml"
package = importlib.util.find_spec("compose")
if package is None:
    deploy_case.skip("the compose file was not read: no Docker Compose here")
# The package's own command hides the exit code.
COMPOSE = pathlib.Path(package.origin).parent / "docker-compose"


def compose(*arguments, file=FILE, **environment):
    outside = {name: value for name, value in os.environ.items() if name != "COMPOSE_PROFILES"}
    return subprocess.run([COMPOSE, "--file", file, *arguments], env={**outside, **environment}, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)


def read(**environment):
    ended = compose("config", "--format", "json", **environment)
    assert ended.returncode == 0, ended.stdout
    return json.loads(ended.stdout)


def seconds(duration):
    return sum(int(value) * {"h": 3600, "m": 60, "s": 1}[unit] for value, unit in re.findall(r"(\d+)([hms])", duration))


class Compose(unittest.TestCase):
    def test_gpu_unless_the_cpu_is_asked_for(self):
        self.assertEqual(set(read()["services"]), {"normd-gpu", "prometheus", "grafana"})
        self.assertEqual(set(read(COMPOSE_PROFILES="cpu")["services"]), {"normd-cpu", "prometheus", "grafana"})

    def test_gpus_are_reserved_for_the_one_that_uses_them(self):
        (device,) = read()["services"]["normd-gpu"]["deploy"]["resources"]["reservations"]["devices"]
        self.assertEqual((device["driver"], device["count"], device["capabilities"]), ("nvidia", -1, ["gpu"]))
        self.assertNotIn("deploy", read(COMPOSE_PROFILES="cpu")["services"]["normd-cpu"])

    def test_both_profiles_differ_in_the_device_alone(self):
        gpu, cpu = read()["services"]["normd-gpu"], read(COMPOSE_PROFILES="cpu")["services"]["normd-cpu"]
        self.assertEqual([argument.replace("=cuda", "=cpu") for argument in gpu["command"]], cpu["command"])
        for name in ("command", "deploy", "profiles"):
            gpu.pop(name)
            cpu.pop(name, None)
        self.assertEqual(gpu, cpu)

    def test_it_stops_after_normd_has_drained(self):
        service = read()["services"]["normd-gpu"]
        flags = dict(argument.split("=") for argument in service["command"] if "=" in argument)
        drained = seconds(flags["--drain_delay"]) + seconds(flags["--drain_timeout"])
        self.assertGreaterEqual(seconds(service["stop_grace_period"]), drained + 5)

    def test_mounted_files_are_there_and_ports_stay_on_this_machine(self):
        config = read()
        for name, service in config["services"].items():
            for volume in service.get("volumes", []):
                if volume["type"] == "bind":
                    self.assertTrue(pathlib.Path(volume["source"]).is_dir(), volume)
                    self.assertTrue(volume["read_only"], volume)
                else:
                    self.assertIn(volume["source"], config["volumes"])
            for port in service["ports"]:
                self.assertEqual(port["host_ip"], "127.0.0.1", name)

    def test_normd_knows_every_flag(self):
        self.assertIsNone(deploy_case.refusal_of_flags(read()["services"]["normd-gpu"]["command"]))

    def test_prometheus_finds_normd_and_grafana_finds_prometheus(self):
        services = read()["services"]
        scraped = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
        (target,) = scraped["scrape_configs"][0]["static_configs"][0]["targets"]
        name, port = target.split(":")
        self.assertIn(name, services["normd-gpu"]["networks"]["default"]["aliases"])
        self.assertIn(f"--metrics_listen=0.0.0.0:{port}\n", (ROOT / "deploy/image/normd.flags").read_text())
        (source,) = yaml.safe_load((ROOT / "deploy/compose/grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"]
        self.assertEqual(source["url"], f"http://prometheus:{services['prometheus']['ports'][0]['target']}")
        self.assertEqual(source["jsonData"]["timeInterval"], scraped["global"]["scrape_interval"])
        (provider,) = yaml.safe_load((ROOT / "deploy/compose/grafana/provisioning/dashboards/normd.yaml").read_text())["providers"]
        mounted = {volume["target"]: pathlib.Path(volume["source"]) for volume in services["grafana"]["volumes"]}
        folder = mounted[provider["options"]["path"]]
        self.assertGreaterEqual(len(list(folder.glob("*.json"))), 4)
        home = pathlib.Path(services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
        self.assertTrue((mounted[str(home.parent)] / home.name).is_file(), home)

    def test_normd_is_confined(self):
        service = read()["services"]["normd-gpu"]
        self.assertEqual((service["read_only"], service["cap_drop"], service["security_opt"]), (True, ["ALL"], ["no-new-privileges:true"]))

    def test_unknown_words_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            copy = shutil.copy(FILE, folder)
            self.assertEqual(compose("config", "--quiet", file=copy).returncode, 0)
            text = pathlib.Path(copy).read_text()
            self.assertIn("read_only: true", text)
            pathlib.Path(copy).write_text(text.replace("read_only: true", "readonly: true"))
            ended = compose("config", "--quiet", file=copy, COMPOSE_PROFILES="gpu")
            self.assertNotEqual(ended.returncode, 0)
            self.assertIn("additional properties 'readonly' not allowed", ended.stdout)


if __name__ == "__main__":
    deploy_case.main()
