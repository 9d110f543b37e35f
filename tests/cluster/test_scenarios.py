"""Every scenario on a real cluster. tests/integration/playground/test_scenarios.py plays the same files.
Besides, what a real kubelet makes of the health of GPUs."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import yaml
from tests.cluster.harness import ROOT, SYSTEM, Cluster, pod, run, template
from tests.cluster.world import MACHINE_FILE, ClusterWorld, place_machine

from tangram.base.clock import SystemClock
from tangram.hardware.machines import load_machine, read_machine
from tangram.playground.scenarios.reading import load_scenario
from tangram.playground.scenarios.runner import Runner

pytestmark = pytest.mark.cluster

FILES = sorted((ROOT / "tests" / "scenarios").glob("*.yaml"))
MACHINES = {"node-1": "a100-sxm4-80gb-x8", "node-2": "h100-sxm5-80gb-x8"}


@pytest.fixture(scope="module")
def by_file(deployed: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Both nodes simulate what a file of theirs says, and read it again every second."""
    values = tmp_path_factory.mktemp("values") / "values.yaml"
    nodes = {node: {"simulate": MACHINE_FILE} for node in ClusterWorld.nodes}
    values.write_text(yaml.safe_dump({"node": {"config": {"rescanIntervalS": 1, "nodes": nodes}}}))
    for node, machine in MACHINES.items():
        place_machine(deployed, node, read_machine(machine).decode())
    _apply_chart(deployed, values)
    yield
    _apply_chart(deployed)
    for node in ClusterWorld.nodes:
        deployed.on_node(node, "rm", "-f", MACHINE_FILE)


@pytest.mark.usefixtures("by_file")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
async def test_scenario(cluster: Cluster, file: Path) -> None:
    outcome = await Runner(ClusterWorld(cluster), clock=SystemClock()).play(load_scenario(file))
    if outcome.result == "skipped":
        pytest.skip(outcome.message)
    assert outcome.result == "passed", outcome.message


@pytest.mark.usefixtures("by_file")
def test_the_pod_itself_says_that_its_gpu_is_lost(cluster: Cluster) -> None:
    if (minor := cluster.minor()) < 36:
        pytest.skip(f"1.{minor} writes no health into pods: ResourceHealthStatus is off before 1.36")

    def told() -> list[tuple[str, str]]:
        (container,) = cluster.get("pod", "user")["status"]["containerStatuses"]
        (claim,) = container.get("allocatedResourcesStatus") or [{"resources": []}]
        return [(resource["health"], resource.get("message", "")) for resource in claim["resources"]]

    node = "node-1"
    machine = load_machine(MACHINES[node])
    lost = [msgspec.structs.replace(gpu, state="lost") for gpu in machine.gpus]
    place_machine(cluster, node, read_machine(MACHINES[node]).decode())
    cluster.apply(template("one"), pod("user", "one", nodeSelector={"kubernetes.io/hostname": node}))
    cluster.wait_phase("user", "Running", timeout_s=120)
    cluster.wait("a healthy GPU in the pod's status", lambda: told() == [("Healthy", "")])
    try:
        text = msgspec.json.encode(msgspec.structs.replace(machine, gpus=tuple(lost))).decode()
        place_machine(cluster, node, text)
        cluster.wait("its loss", lambda: told() == [("Unhealthy", "GPU is lost")])
    finally:
        place_machine(cluster, node, read_machine(MACHINES[node]).decode())
    cluster.wait("its return", lambda: told() == [("Healthy", "")])


def _apply_chart(cluster: Cluster, *values: Path) -> None:
    files = (ROOT / "deploy" / "values-simulated.yaml", *values)
    arguments = [argument for file in files for argument in ("--values", str(file))]
    cluster.kubectl("apply", "-f", "-", stdin=run(str(ROOT / "hack" / "render"), *arguments))
    cluster.kubectl("rollout", "status", "daemonset/tangram-node", "-n", SYSTEM, "--timeout=120s")
    cluster.wait_components()
