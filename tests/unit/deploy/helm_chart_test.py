#!/usr/bin/env python3
"""What the Helm chart renders. Usage: helm_chart_test.py ROOT NORMD"""

import json
import re
import shutil
import subprocess
import tempfile
import unittest

import deploy_case
from deploy_case import ROOT
from helm_case import CHART, CPU, EVERYTHING, KUBERNETES, MUTUAL_TLS, OPERATOR_KINDS, container_of, flag, helm, notes, pod_of, refusal, render, selects, yaml

try:
    import kubernetes_validate
except ImportError as error:
    deploy_case.skip(f"the chart's objects were not validated: {error}")


class Rendered(unittest.TestCase):
    def test_helm_finds_no_fault(self):
        found = helm.lint(str(CHART))
        self.assertEqual(found["errors"], [])
        self.assertEqual([entry for entry in found["messages"] if entry["severity"] > 1], [])

    def test_objects_are_what_kubernetes_accepts(self):
        for values in ({}, EVERYTHING, MUTUAL_TLS, CPU):
            for kind, objects in render(values).items():
                for document in objects:
                    for version in () if kind in OPERATOR_KINDS else KUBERNETES:
                        with self.subTest(kind=kind, version=version):
                            kubernetes_validate.validate(document, version, strict=True)

    def test_names_that_look_like_other_types_stay_names(self):
        odd = {**MUTUAL_TLS, "runtimeClassName": "1e3", "priorityClassName": "null", "image": {"tag": "20261130"},
               "tls": {"secretName": "123", "clientCaSecretName": "1.5", "probe": {"caSecretName": "true", "serverName": "0"}},
               "access": {"secretName": "0x10", "dataTokensKey": "1"}, "podAnnotations": {"a": "1"}, "nodeSelector": {"gpu": "true"},
               "networkPolicy": {"enabled": True}, "autoscaling": {"enabled": True}}
        for name in ("123", "1e3", "true", "null"):
            for kind, objects in render(odd, name=name).items():
                for document in objects:
                    with self.subTest(kind=kind, name=name):
                        kubernetes_validate.validate(document, KUBERNETES[-1], strict=True)
                        self.assertEqual(document["metadata"]["labels"]["app.kubernetes.io/instance"], name)
        pod = pod_of(render(odd))
        self.assertEqual([volume["secret"]["secretName"] for volume in pod["volumes"]], ["123", "true", "1.5", "0x10"])
        self.assertEqual((pod["runtimeClassName"], pod["priorityClassName"]), ("1e3", "null"))
        self.assertEqual(container_of(render(odd))["image"], "normd:20261130")
        self.assertIn("got number, want string", refusal({"image": {"tag": 20261130}}))

    def test_a_fault_is_seen_by_the_validator(self):
        (deployment,) = render()["Deployment"]
        deployment["spec"]["replicas"] = "two"
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(deployment, KUBERNETES[-1], strict=True)

    def test_versions_are_the_projects(self):
        chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
        self.assertEqual((chart["version"], chart["appVersion"]), (deploy_case.PROJECT_VERSION, deploy_case.PROJECT_VERSION))
        self.assertEqual(container_of(render())["image"], f"normd:{deploy_case.PROJECT_VERSION}")

    def test_every_object_has_its_own_name(self):
        for kind, objects in render(EVERYTHING).items():
            names = [document["metadata"]["name"] for document in objects]
            self.assertEqual(len(names), len(set(names)), kind)
            self.assertTrue(all(len(name) <= 63 for name in names))
        self.assertEqual(render(name="normd")["Deployment"][0]["metadata"]["name"], "normd")


class Notes(unittest.TestCase):
    def test_they_name_the_services_that_there_are(self):
        names = [service["metadata"]["name"] for service in render()["Service"]]
        for name in names:
            self.assertIn(f"{name}.serving.svc:8470", notes())
        self.assertIn("(no TLS)", notes())
        self.assertNotIn("(no TLS)", notes(MUTUAL_TLS))

    def test_they_suggest_what_the_pod_may_ask(self):
        self.assertIn("normctl info --server 127.0.0.1:8470", notes())
        for access in ({"dataTokensKey": "a"}, {"adminTokensKey": "a"}):  # admin is closed with either
            text = notes({"access": {"secretName": "lists", **access}})
            self.assertIn("normctl health --server 127.0.0.1:8470", text)
            self.assertNotIn("normctl info", text)

    def test_they_say_what_interrupts_the_service(self):
        self.assertNotIn("One replica", notes())
        self.assertIn("One replica", notes({"replicaCount": 1}))
        self.assertNotIn("One replica", notes({"replicaCount": 1, "strategy": {"maxUnavailable": 0, "maxSurge": 1}}))
        self.assertIn("One replica", notes({"autoscaling": {"enabled": True, "minReplicas": 1}}))
        self.assertNotIn("drained.", notes())
        self.assertIn("podDisruptionBudget.maxUnavailable is 0%: no node", notes({"podDisruptionBudget": {"maxUnavailable": "0%"}}))


class Termination(unittest.TestCase):
    def test_grace_holds_delay_timeout_and_margin(self):
        for delay, timeout, margin in ((10, 25, 5), (6, 1, 2), (60, 600, 30), (3600, 3600, 10)):
            objects = render({"drain": {"delaySeconds": delay, "timeoutSeconds": timeout, "marginSeconds": margin}})
            container = container_of(objects)
            self.assertEqual(flag(container, "drain_delay"), f"{delay}s")
            self.assertEqual(flag(container, "drain_timeout"), f"{timeout}s")
            self.assertEqual(pod_of(objects)["terminationGracePeriodSeconds"], delay + timeout + margin)

    def test_it_serves_until_a_probe_has_seen_that_it_is_not_ready(self):
        values = yaml.safe_load((CHART / "values.yaml").read_text())
        readiness = values["probes"]["readiness"]
        self.assertGreaterEqual(values["drain"]["delaySeconds"], readiness["periodSeconds"] * readiness["failureThreshold"])
        self.assertIn("drain.delaySeconds: must be at least probes.readiness.periodSeconds x failureThreshold = 20, got 19",
                      refusal({"drain": {"delaySeconds": 19}, "probes": {"readiness": {"periodSeconds": 10, "failureThreshold": 2}}}))
        self.assertIsNone(refusal({"drain": {"delaySeconds": 20}, "probes": {"readiness": {"periodSeconds": 10, "failureThreshold": 2}}}))


class Probes(unittest.TestCase):
    PROBES = {"startupProbe": "", "readinessProbe": "", "livenessProbe": "liveness"}

    def test_ports_are_those_that_normd_listens_at(self):
        for grpc, metrics in ((8470, 8471), (9000, 9100)):
            objects = render({"ports": {"grpc": grpc, "metrics": metrics}, "serviceMonitor": {"enabled": True}})
            container = container_of(objects)
            self.assertEqual(flag(container, "listen"), f"0.0.0.0:{grpc}")
            self.assertEqual(flag(container, "metrics_listen"), f"0.0.0.0:{metrics}")
            named = {port["name"]: port["containerPort"] for port in container["ports"]}
            self.assertEqual(named, {"grpc": grpc, "metrics": metrics})
            for probe in self.PROBES:
                self.assertEqual(container[probe]["grpc"]["port"], grpc)
            for service in objects["Service"]:
                for port in service["spec"]["ports"]:
                    self.assertEqual(named[port["targetPort"]], port["port"])
                    self.assertEqual(port["targetPort"], port["name"])

    def test_names_are_those_that_the_health_service_knows(self):
        health = (ROOT / "server/transport/health.cc").read_text()
        known = set(re.findall(r'"([\w.]*)"', re.search(r"kServices\[\] = \{(.*?)\};", health, re.DOTALL).group(1)))
        liveness = re.search(r'kLiveness\[\] = "(\w+)"', health).group(1)
        container = container_of(render())
        for probe, service in self.PROBES.items():
            self.assertEqual(container[probe]["grpc"]["service"], service)
            self.assertIn(service, known | {liveness})
        # The other names say NOT_SERVING while normd drains: the kubelet would restart it.
        self.assertEqual(container["livenessProbe"]["grpc"]["service"], liveness)

    def test_behind_tls_normctl_asks_from_inside(self):
        container = container_of(render(MUTUAL_TLS))
        self.assertEqual(container["livenessProbe"]["tcpSocket"], {"port": 8470})
        for probe in ("startupProbe", "readinessProbe"):
            self.assertNotIn("grpc", container[probe])
            self.assertEqual(container[probe]["exec"]["command"],
                             ["normctl", "health", "--server", "127.0.0.1:8470", "--service", "", "--attempts", "1", "--timeout", "5s"])
        self.assertEqual({entry["name"]: entry["value"] for entry in container["env"]}, {
            "NORMD_TLS_CA": "/etc/normd/probe/ca.crt", "NORMD_TLS_NAME": "normd.example",
            "NORMD_TLS_CERT": "/etc/normd/probe/tls.crt", "NORMD_TLS_KEY": "/etc/normd/probe/tls.key"})
        unnamed = container_of(render({"insecure": False, "tls": {"secretName": "a", "probe": {"caSecretName": "b"}}}))
        self.assertIn({"name": "NORMD_TLS_NAME", "value": "demo-normd.serving.svc"}, unnamed["env"])


class Security(unittest.TestCase):
    def test_tls_and_lists_come_from_mounted_secrets(self):
        objects = render(MUTUAL_TLS)
        container, pod = container_of(objects), pod_of(objects)
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        secrets = {volume["name"]: volume["secret"]["secretName"] for volume in pod["volumes"]}
        self.assertEqual(secrets, {"tls": "server", "probe": "probe", "client-ca": "authority", "access": "lists"})
        self.assertEqual(set(mounts), set(secrets))
        for name, file in (("tls_cert", "tls/tls.crt"), ("tls_key", "tls/tls.key"), ("tls_client_ca", "client-ca/ca.crt"),
                           ("data_tokens", "access/data"), ("admin_tokens", "access/admin"), ("data_clients", "access/names"),
                           ("admin_clients", "access/admins")):
            self.assertEqual(flag(container, name), f"/etc/normd/{file}")
        self.assertNotIn("--insecure", container["args"])
        self.assertTrue(all(mount["readOnly"] for mount in container["volumeMounts"]))

    def test_no_tls_is_said(self):
        container = container_of(render())
        self.assertIn("--insecure", container["args"])
        self.assertNotIn("volumeMounts", container)

    def test_the_pod_can_do_what_it_needs_and_no_more(self):
        objects = render()
        user = int(re.search(r"^USER (\d+):", (ROOT / "Dockerfile").read_text(), re.MULTILINE).group(1))
        pod, container = pod_of(objects), container_of(objects)
        self.assertEqual((pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]), (True, user))
        self.assertEqual(pod["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"})
        self.assertFalse(pod["automountServiceAccountToken"])
        self.assertEqual(container["securityContext"], {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                                        "capabilities": {"drop": ["ALL"]}})
        # The rest of the pod security standard "restricted".
        for values in ({}, EVERYTHING, MUTUAL_TLS):
            pod = pod_of(render(values))
            self.assertFalse({"hostNetwork", "hostPID", "hostIPC", "initContainers", "ephemeralContainers"} & set(pod))
            self.assertTrue(all(set(volume) == {"name", "secret"} for volume in pod.get("volumes", [])))
            self.assertTrue(all("hostPort" not in port for port in container_of(render(values))["ports"]))

    def test_network_policy_opens_both_ports_to_their_peers(self):
        clients, monitoring = [{"podSelector": {"matchLabels": {"role": "trainer"}}}], [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]
        (policy,) = render({"networkPolicy": {"clients": clients, "monitoring": monitoring}})["NetworkPolicy"]
        self.assertEqual(policy["spec"]["policyTypes"], ["Ingress", "Egress"])
        self.assertEqual([(rule["ports"][0]["port"], rule["from"]) for rule in policy["spec"]["ingress"]],
                         [("grpc", clients), ("metrics", monitoring)])
        self.assertEqual(policy["spec"]["egress"], [])
        self.assertNotIn("NetworkPolicy", render({"networkPolicy": {"enabled": False}}))

    def test_normd_knows_every_flag(self):
        for values in ({}, EVERYTHING, MUTUAL_TLS, CPU):
            self.assertIsNone(deploy_case.refusal_of_flags(container_of(render(values))["args"]))
        numbers = container_of(render({"flags": {"max_in_flight_bytes": 17179869184, "max_queue_requests": 1000000}}))
        self.assertEqual((flag(numbers, "max_in_flight_bytes"), flag(numbers, "max_queue_requests")), ("17179869184", "1000000"))
        self.assertIsNone(deploy_case.refusal_of_flags(numbers["args"]))
        self.assertIn("there is no such flag", deploy_case.refusal_of_flags(container_of(render({"flags": {"slot": 1}}))["args"]))


class Selection(unittest.TestCase):
    def test_everything_selects_the_pods(self):
        objects = render(EVERYTHING)
        (deployment,) = objects["Deployment"]
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        selectors = [deployment["spec"]["selector"]["matchLabels"], objects["PodDisruptionBudget"][0]["spec"]["selector"]["matchLabels"],
                     objects["NetworkPolicy"][0]["spec"]["podSelector"]["matchLabels"]]
        selectors += [service["spec"]["selector"] for service in objects["Service"]]
        for selector in selectors:
            self.assertTrue(selector and selects(selector, labels), selector)
        self.assertEqual(objects["HorizontalPodAutoscaler"][0]["spec"]["scaleTargetRef"]["name"], deployment["metadata"]["name"])
        self.assertNotIn("replicas", deployment["spec"])
        self.assertEqual(pod_of(objects)["serviceAccountName"], objects["ServiceAccount"][0]["metadata"]["name"])

    def test_one_service_is_headless_and_the_monitor_scrapes_it_alone(self):
        objects = render(EVERYTHING)
        headless = [service for service in objects["Service"] if service["spec"].get("clusterIP") == "None"]
        self.assertEqual(len(headless), 1)
        monitor = objects["ServiceMonitor"][0]
        selected = [service["metadata"]["name"] for service in objects["Service"]
                    if selects(monitor["spec"]["selector"]["matchLabels"], service["metadata"]["labels"])]
        self.assertEqual(selected, [headless[0]["metadata"]["name"]])
        self.assertIn(monitor["spec"]["endpoints"][0]["port"], [port["name"] for port in headless[0]["spec"]["ports"]])
        self.assertEqual(monitor["metadata"]["labels"]["release"], "prometheus")

    def test_replicas_are_spread_among_themselves(self):
        (constraint,) = pod_of(render(EVERYTHING))["topologySpreadConstraints"]
        labels = render(EVERYTHING)["Deployment"][0]["spec"]["template"]["metadata"]["labels"]
        self.assertTrue(selects(constraint["labelSelector"]["matchLabels"], labels))
        self.assertEqual(constraint["topologyKey"], "kubernetes.io/hostname")
        own = {**EVERYTHING["topologySpreadConstraints"][0], "labelSelector": {"matchLabels": {"a": "b"}}}
        (constraint,) = pod_of(render({"topologySpreadConstraints": [own]}))["topologySpreadConstraints"]
        self.assertEqual(constraint["labelSelector"]["matchLabels"]["a"], "b")

    def test_gpus(self):
        self.assertEqual(container_of(render({"gpu": {"count": 2, "resourceName": "nvidia.com/mig-1g.18gb"}}))["resources"]["limits"],
                         {"memory": "24Gi", "nvidia.com/mig-1g.18gb": 2})
        self.assertEqual(container_of(render(CPU))["resources"]["limits"], {"memory": "24Gi"})
        self.assertEqual(container_of(render({**CPU, "resources": {"limits": {"memory": None}}}))["resources"]["limits"], {})
        self.assertEqual(flag(container_of(render(CPU)), "device"), "cpu")
        # The image asks for all, which NVIDIA's runtime grants where it is the node's default.
        none = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
        self.assertEqual(container_of(render(CPU))["env"], [none])
        self.assertIn(none, container_of(render({**MUTUAL_TLS, **CPU}))["env"])
        self.assertNotIn("env", container_of(render()))


class Monitoring(unittest.TestCase):
    def test_rules_and_dashboards_are_the_files_that_prometheus_and_grafana_read(self):
        objects = render(EVERYTHING)
        groups = [group for file in sorted((ROOT / "deploy/prometheus/rules").glob("*.yml")) for group in yaml.safe_load(file.read_text())["groups"]]
        self.assertEqual(objects["PrometheusRule"][0]["spec"]["groups"] or [], groups)
        shipped = {file.name: json.loads(file.read_text()) for file in (ROOT / "deploy/grafana/dashboards").glob("*.json")}
        mapped = {name: json.loads(text) for document in objects.get("ConfigMap", []) for name, text in document["data"].items()}
        self.assertEqual(mapped, shipped)

    def test_autoscaler_reads_what_the_adapter_makes(self):
        (rule,) = yaml.safe_load((ROOT / "deploy/helm/prometheus-adapter.yaml").read_text())["rules"]["custom"]
        metric = render(EVERYTHING)["HorizontalPodAutoscaler"][0]["spec"]["metrics"][0]["pods"]
        self.assertEqual(metric["metric"]["name"], rule["name"]["as"])
        self.assertEqual(metric["target"], {"type": "AverageValue", "averageValue": "5m"})
        if shutil.which("promtool") is None:
            self.skipTest("no promtool here (Debian's package prometheus): the adapter's query was not evaluated")
        query = rule["metricsQuery"].replace("<<.LabelMatchers>>", 'namespace="serving"').replace("<<.GroupBy>>", "pod")
        labels = 'stage="queue",namespace="serving",pod='
        # a: 600 requests a minute that waited 3 s in all: 5 ms each. b: none since long ago. c: 3 a minute of 1/128 s.
        test = {"evaluation_interval": "15s", "rule_files": [], "tests": [{
            "interval": "15s",
            "input_series": [
                {"series": f'normd_stage_seconds_sum{{{labels}"a"}}', "values": "0+0.75x20"},
                {"series": f'normd_stage_seconds_count{{{labels}"a"}}', "values": "0+150x20"},
                {"series": f'normd_stage_seconds_sum{{{labels}"b"}}', "values": "7x20"},
                {"series": f'normd_stage_seconds_count{{{labels}"b"}}', "values": "9x20"},
                {"series": f'normd_stage_seconds_sum{{{labels}"c"}}', "values": "0+0.005859375x20"},
                {"series": f'normd_stage_seconds_count{{{labels}"c"}}', "values": "0+0.75x20"}],
            "promql_expr_test": [{"expr": query, "eval_time": "4m",
                                  "exp_samples": [{"labels": f'{{pod="{pod}"}}', "value": value}
                                                  for pod, value in (("a", 0.005), ("b", 0), ("c", 0.0078125))]}]}]}
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
            yaml.safe_dump(test, file)
            file.flush()
            ended = subprocess.run(["promtool", "test", "rules", file.name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(ended.returncode, 0, ended.stdout)


if __name__ == "__main__":
    deploy_case.main()
