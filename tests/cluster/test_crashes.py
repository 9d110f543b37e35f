"""A sample of crashes on a real cluster: the plugin's process dies inside calls of the driver, prepare and
unprepare, and kubelet, plugin and pods get past it by themselves.

All points of all kinds are met in one process by `tests/unit/node/test_kind_crashes.py`, some by the real
process with a kubelet of ours (`tests/integration/node/test_process_crashes.py`). The kubelet here is real:
it starts the container anew, asks again after a while, and unprepares in the end.
"""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.cluster.harness import DRIVER, Cluster, pod
from tests.cluster.test_scenarios import by_file  # noqa: F401 - a fixture
from tests.cluster.world import place_machine

from tangram.hardware.machines import load_machine
from tangram.hardware.machines.faultplan import Call, Fault
from tangram.model.gpu import MigMode

pytestmark = pytest.mark.cluster

NODE = "node-1"
STATE = f"/var/lib/kubelet/plugins/{DRIVER}/simulated"
NOTES = f"/var/lib/kubelet/plugins/{DRIVER}/gpus"
MIG: list[tuple[Call, bool]] = [
    ("create_gpu_instance", True),
    ("mig_nodes", False),
    ("destroy_compute_instance", True),
    ("destroy_gpu_instance", True),
]
MPS: list[tuple[Call, bool]] = [("set_compute_mode", False), ("set_compute_mode", True)]


def machine(mode: MigMode, faults: list[tuple[Call, bool]]) -> str:
    """Two GPUs, and what ends the process that calls."""
    found = load_machine("a100-pcie-80gb-x4")
    found = msgspec.structs.replace(
        found,
        models=tuple(msgspec.structs.replace(model, mig_mode=mode) for model in found.models),
        faults=tuple(Fault(call=call, error="KILL", effect=effect) for call, effect in faults),
    )
    return msgspec.json.encode(found).decode()


def start_anew(cluster: Cluster) -> None:
    """Puts another pod in the place of a plugin that the kubelet lets wait after a crash, ever longer."""
    for each in cluster.component_pods("node", NODE):
        statuses = each["status"].get("containerStatuses") or ()
        if any("waiting" in status["state"] and status["restartCount"] for status in statuses):
            name, namespace = each["metadata"]["name"], each["metadata"]["namespace"]
            cluster.kubectl("delete", "pod", name, "-n", namespace, "--wait=false", "--ignore-not-found")


def wait(cluster: Cluster, what: str, seen: Callable[[], Any]) -> None:
    """As `Cluster.wait`, while the plugin crashes."""

    def seen_meanwhile() -> Any:
        start_anew(cluster)
        return seen()

    cluster.wait(what, seen_meanwhile, timeout_s=300)


def states(cluster: Cluster) -> list[dict[str, Any]]:
    """What the GPUs of the node remember."""
    text = cluster.on_node(NODE, "sh", "-c", f"cat {STATE}/GPU-*.json", check=False)
    decoder, found, position = json.JSONDecoder(), [], 0
    while position < len(text):
        content, position = decoder.raw_decode(text, position)
        found.append(content["state"])
    return found


def changed(cluster: Cluster) -> int:
    """GPU instances, and GPUs with another compute mode than they had."""
    return sum(
        len(state.get("instances", [])) + (state.get("compute_mode", "default") != "default")
        for state in states(cluster)
    )


@pytest.mark.usefixtures("by_file")
@pytest.mark.parametrize("kind", ["mig", "mps"])
def test_the_plugin_dies_inside_calls_of_the_driver(cluster: Cluster, kind: str) -> None:
    faults = MIG if kind == "mig" else MPS
    cluster.on_node(NODE, "sh", "-c", f"rm -f {STATE}/happened-*")
    place_machine(cluster, NODE, machine("enabled" if kind == "mig" else "disabled", faults))

    def offered() -> bool:
        text = cluster.kubectl("get", "resourceslices", "-o", "json")
        names = [
            device["name"]
            for each in json.loads(text)["items"]
            if each["spec"].get("nodeName") == NODE
            for device in each["spec"].get("devices") or []
        ]
        return any(name.endswith("-mig-3g40gb-4" if kind == "mig" else "-mps") for name in names)

    cluster.wait(f"devices of kind {kind}", offered, timeout_s=120)
    config: dict[str, Any] = {"apiVersion": f"{DRIVER}/v1alpha1", "kind": "GPUClaimParameters"}
    config |= {"migProfile": "3g.40gb"} if kind == "mig" else {"shPolicy": "mps"}
    cluster.apply(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "crash"},
            "spec": {
                "spec": {
                    "devices": {
                        "requests": [
                            {"name": "gpu", "exactly": {"deviceClassName": f"{kind}.{DRIVER}", "count": 1}}
                        ],
                        "config": [{"opaque": {"driver": DRIVER, "parameters": config}}],
                    }
                }
            },
        },
        pod("crash", "crash", nodeSelector={"kubernetes.io/hostname": NODE}),
    )
    wait(cluster, "pod running", lambda: cluster.get("pod", "crash")["status"].get("phase") == "Running")
    (claim,) = cluster.claims_of(cluster.get("pod", "crash"))
    uid = claim["metadata"]["uid"]
    assert cluster.kept_on(NODE) == ({uid}, {uid})
    assert changed(cluster) == 1
    cluster.kubectl("delete", "pod", "crash", "-n", cluster.namespace, "--wait=false")
    wait(cluster, "pod gone", lambda: not cluster.get("pod", "crash"))
    wait(cluster, "the node to hold nothing", lambda: cluster.kept_on(NODE) == (set(), set()))
    wait(cluster, "the GPUs as they were", lambda: changed(cluster) == 0)
    struck = cluster.on_node(NODE, "sh", "-c", f"ls {STATE} | grep -c '^happened-[0-9a-f]*$'", check=False)
    assert int(struck) >= (3 if kind == "mig" else 1)
    assert cluster.on_node(NODE, "sh", "-c", f"ls {NOTES}", check=False).split() == []
