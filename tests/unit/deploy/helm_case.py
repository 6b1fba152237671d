"""What the tests of the Helm chart share: the chart, rendered by Helm itself, and values for it."""

import deploy_case
from deploy_case import ROOT

try:
    import helm_python as helm
    import yaml
except ImportError as error:
    deploy_case.skip(f"the chart was not rendered: {error}")

CHART = ROOT / "deploy/helm/normd"
KUBERNETES = ("1.27.0", "1.32.0", "1.37.0")  # the oldest with gRPC probes, and later ones
OPERATOR_KINDS = ("PrometheusRule", "ServiceMonitor")  # of the Prometheus operator: no schema here
EVERYTHING = {
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}, "prometheusRule": {"enabled": True},
    "dashboards": {"enabled": True}, "autoscaling": {"enabled": True}, "flags": {"max_queue_delay": "1ms", "slots": 4},
    "service": {"type": "LoadBalancer", "annotations": {"a": "b"}}, "imagePullSecrets": [{"name": "registry"}],
    "networkPolicy": {"clients": [{"podSelector": {"matchLabels": {"role": "trainer"}}}], "egress": [{"ports": [{"port": 4317}]}]},
    "podAnnotations": {"c": "d"}, "podLabels": {"e": "f"}, "nodeSelector": {"gpu": "h200"}, "runtimeClassName": "nvidia",
    "priorityClassName": "high", "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}],
    "insecure": False, "tls": {"secretName": "server", "probe": {"caSecretName": "probe"}},
}
MUTUAL_TLS = {
    "insecure": False,
    "tls": {"secretName": "server", "clientCaSecretName": "authority", "probe": {"caSecretName": "probe", "serverName": "normd.example"}},
    "access": {"secretName": "lists", "dataTokensKey": "data", "adminTokensKey": "admin", "dataClientsKey": "names", "adminClientsKey": "admins"},
}
CPU = {"device": "cpu", "gpu": {"count": 0}}


def render(values=None, name="demo"):
    """The chart's objects by kind."""
    objects = {}
    with helm.Chart.load(str(CHART)) as chart:
        for path, text in chart.render(values or {}, name=name, namespace="serving").items():
            if path.endswith("NOTES.txt"):
                continue
            for document in yaml.safe_load_all(text):
                if document is not None:
                    objects.setdefault(document["kind"], []).append(document)
    return objects


def notes(values=None):
    """What Helm says after an installation."""
    with helm.Chart.load(str(CHART)) as chart:
        (text,) = [text for path, text in chart.render(values or {}, name="demo", namespace="serving").items() if path.endswith("NOTES.txt")]
    return text


def refusal(values):
    """Helm's words against these values, or None."""
    try:
        render(values)
    except helm.HelmError as error:
        return str(error)
    return None


def pod_of(objects):
    return objects["Deployment"][0]["spec"]["template"]["spec"]


def container_of(objects):
    (container,) = pod_of(objects)["containers"]
    return container


def flag(container, name):
    (value,) = [argument.split("=", 1)[1] for argument in container["args"] if argument.startswith(f"--{name}=")]
    return value


def selects(selector, labels):
    return all(labels.get(key) == value for key, value in selector.items())
