#!/usr/bin/env python3
"""Which values the Helm chart refuses, and why. Usage: helm_values_test.py ROOT NORMD"""

import json
import unittest

import deploy_case
from helm_case import CHART, MUTUAL_TLS, refusal, yaml


class Values(unittest.TestCase):
    def test_unknown_values_are_refused_everywhere(self):
        schema = json.loads((CHART / "values.schema.json").read_text())
        closed = []

        def walk(node, path):
            if "properties" in node:
                self.assertIs(node.get("additionalProperties"), False, path)
                closed.append(path)
                for name, child in node["properties"].items():
                    walk(child, (*path, name))

        walk(schema, ())
        self.assertGreater(len(closed), 15)
        for path in closed:
            values = {"no_such_value": 1}
            for name in reversed(path):
                values = {name: values}
            self.assertIn("additional properties 'no_such_value' not allowed", refusal(values) or "", path)

    def test_schema_and_defaults_have_the_same_values(self):
        def walk(values, node, path):
            if "properties" in node:
                self.assertEqual(set(values), set(node["properties"]) - {"global"}, path)
                for name, value in values.items():
                    walk(value, node["properties"][name], (*path, name))

        walk(yaml.safe_load((CHART / "values.yaml").read_text()), json.loads((CHART / "values.schema.json").read_text()), ())

    def test_values_out_of_range_or_of_another_type(self):
        for values in ({"replicaCount": -1}, {"replicaCount": "two"}, {"ports": {"grpc": 80}}, {"ports": {"grpc": 65536}},
                       {"device": "gpu"}, {"gpu": {"count": 0.5}}, {"flags": {"listen": "0.0.0.0:1"}}, {"flags": {"slots": [1]}}, {"flags": {"slots": 1.5}}, {"flags": {"processes": 0}},
                       {"flags": {"max-queue-delay": "1ms"}}, {"drain": {"timeoutSeconds": 0}}, {"drain": {"marginSeconds": 0}},
                       {"strategy": {"maxSurge": "half"}}, {"autoscaling": {"queueWait": "5 ms"}}, {"tls": {"secretName": "A b"}},
                       {"serviceMonitor": {"interval": "15"}}, {"image": {"repository": ""}}, {"nodeSelector": {"gpu": True}},
                       {"podLabels": {"app.kubernetes.io/name": "other"}}, {"topologySpreadConstraints": [{"maxSkew": 1}]}):
            said = refusal(values)
            self.assertIsNotNone(said, values)
            self.assertIn("don't meet the specifications of the schema", said)

    def test_values_that_contradict_each_other(self):
        for values, said in (
                ({"insecure": False}, "tls.secretName: must be set when insecure is false"),
                ({"tls": {"secretName": "a"}}, "insecure: must be false when tls.secretName is set"),
                ({"tls": {"clientCaSecretName": "a"}}, "tls.clientCaSecretName: needs tls.secretName"),
                ({"insecure": False, "tls": {"secretName": "a"}}, "tls.probe.caSecretName: must be set"),
                ({"device": "cpu"}, "gpu.count: must be 0 when device is cpu, got 1"),
                ({"gpu": {"count": 0}}, "gpu.count: must be 1 or more when device is cuda, got 0"),
                ({"ports": {"grpc": 8471}}, "ports.metrics: must differ from ports.grpc, both are 8471"),
                ({"autoscaling": {"minReplicas": 9}}, "autoscaling.minReplicas: must be at most maxReplicas = 8, got 9"),
                ({"strategy": {"maxUnavailable": 0}}, "strategy.maxUnavailable, strategy.maxSurge: must not both be 0"),
                ({"strategy": {"maxUnavailable": "0%", "maxSurge": "0"}}, "strategy.maxUnavailable, strategy.maxSurge: must not both be 0"),
                ({"service": {"type": "NodePort"}}, "insecure: must be false when service.type is NodePort"),
                ({**MUTUAL_TLS, "service": {"type": "LoadBalancer"}}, "networkPolicy.clients: must say who may call when service.type is LoadBalancer"),
                ({"resources": {"limits": {"nvidia.com/gpu": 1}}}, "resources.limits: must not hold nvidia.com/gpu"),
                ({"access": {"dataTokensKey": "a"}}, "access.dataTokensKey: needs access.secretName"),
                ({"access": {"secretName": "a", "dataClientsKey": "b"}}, "need tls.clientCaSecretName")):
            self.assertIn(said, refusal(values) or "", values)
        for values in ({"strategy": {"maxUnavailable": 0, "maxSurge": 1}}, {"strategy": {"maxUnavailable": "10%"}},
                       {**MUTUAL_TLS, "service": {"type": "NodePort"}, "networkPolicy": {"enabled": False}}):
            self.assertIsNone(refusal(values), values)


if __name__ == "__main__":
    deploy_case.main()
