"""Pod feasibility without devices, against the rules of kube-scheduler's filters."""

import json
from typing import Any

import pytest
from tests.fleet import kube_node
from tests.fleet import pod as pod_object

from tangram.controller.nodefit import NodeRecord, decode_node, pod_resources, refusal
from tangram.kube.client import decode
from tangram.kube.objects import Pod


def node(labels: dict[str, str] | None = None, **spec: Any) -> NodeRecord:
    item = kube_node("n1", **spec)
    item["metadata"]["labels"] |= labels or {}
    return decode_node(json.dumps(item).encode())


def pod(**spec: Any) -> Pod:
    return decode(json.dumps(pod_object("p", **spec)).encode(), Pod)


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": list(terms)}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("spec", "fits"),
    [
        ({}, False),
        ({"tolerations": None}, False),
        ({"tolerations": [{"key": "gpu", "operator": "Exists"}]}, True),
        ({"tolerations": [{"operator": "Exists"}]}, True),
        ({"tolerations": [{"key": "gpu", "value": "yes"}]}, True),
        ({"tolerations": [{"key": "gpu", "value": "no"}]}, False),
        ({"tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}]}, False),
        ({"tolerations": [{"key": "", "operator": "Equal", "value": "yes"}]}, False),
    ],
)
def test_taints(spec: dict[str, Any], fits: bool) -> None:
    why = refusal(pod(**spec), node(taints=[TAINT]))
    assert (why == "") == fits
    if why != "":
        assert why == "on nodes with the untolerated taint gpu:NoSchedule"


def test_a_soft_taint_refuses_nobody() -> None:
    assert refusal(pod(), node(taints=[{**TAINT, "effect": "PreferNoSchedule"}])) == ""


def test_a_cordoned_node_needs_its_toleration() -> None:
    why = refusal(pod(), node(unschedulable=True))
    assert why != ""
    assert why == "on cordoned nodes"
    tolerated = [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]
    assert refusal(pod(tolerations=tolerated), node(unschedulable=True)) == ""


@pytest.mark.parametrize(
    ("spec", "fits"),
    [
        ({"nodeSelector": {"zone": "a"}}, True),
        ({"nodeSelector": {"zone": "b"}}, False),
        ({"affinity": affinity(expression("zone", "In", "a", "b"))}, True),
        ({"affinity": affinity(expression("zone", "NotIn", "a"))}, False),
        ({"affinity": affinity(expression("zone", "Exists"))}, True),
        ({"affinity": affinity(expression("zone", "DoesNotExist"))}, False),
        ({"affinity": affinity(expression("cores", "Gt", "8"))}, True),
        ({"affinity": affinity(expression("cores", "Lt", "8"))}, False),
        ({"affinity": affinity(expression("zone", "Gt", "8"))}, False),
        ({"affinity": affinity(expression("cores", "Gt"))}, False),
        ({"affinity": affinity(expression("zone", "Sideways", "a"))}, False),
        ({"affinity": affinity({})}, False),
        ({"affinity": affinity(expression("zone", "In", "b"), expression("zone", "In", "a"))}, True),
        ({"affinity": affinity()}, False),
        (
            {
                "affinity": affinity(
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
                )
            },
            True,
        ),
        (
            {
                "affinity": affinity(
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}
                )
            },
            False,
        ),
        ({"affinity": {"nodeAffinity": None}}, True),
        ({"affinity": None}, True),
    ],
)
def test_selectors(spec: dict[str, Any], fits: bool) -> None:
    assert (refusal(pod(**spec), node({"zone": "a", "cores": "16"})) == "") == fits


def test_host_ports() -> None:
    container = {"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}
    wants = pod(containers=[container])
    assert refusal(wants, node(), [("TCP", "10.0.0.1", 80)]) != ""
    assert refusal(wants, node(), [("UDP", "0.0.0.0", 80), ("TCP", "0.0.0.0", 81)]) == ""
    only_at_start = pod(initContainers=[container])
    assert refusal(only_at_start, node(), [("TCP", "0.0.0.0", 80)]) == ""
    sidecar = pod(initContainers=[{**container, "restartPolicy": "Always"}])
    assert refusal(sidecar, node(), [("TCP", "0.0.0.0", 80)]) != ""


def container(cpu: str, **more: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": {"cpu": cpu}}, **more}


@pytest.mark.parametrize(
    ("spec", "cpu_milli"),
    [
        ({"containers": [container("1"), container("250m")]}, 1250),
        ({"containers": [container("1")], "initContainers": [container("3")]}, 3000),
        ({"containers": [container("1")], "initContainers": [container("2", restartPolicy="Always")]}, 3000),
        (
            {
                "containers": [container("1")],
                "initContainers": [container("2", restartPolicy="Always"), container("4")],
            },
            6000,
        ),
        ({"containers": [container("1")], "overhead": {"cpu": "100m"}}, 1100),
        ({"containers": [container("1")], "resources": {"requests": {"cpu": "5"}}}, 5000),
        ({"containers": [container("0.0001")]}, 1),
        ({"containers": [{"name": "c", "resources": None}]}, 0),
        ({"containers": None}, 0),
    ],
)
def test_pod_resources(spec: dict[str, Any], cpu_milli: int) -> None:
    resources = pod_resources(pod(**spec))
    assert resources.get("cpu", 0) == cpu_milli
    assert resources["pods"] == 1000
