"""Every scenario on a real cluster. tests/integration/playground/test_scenarios.py plays the same files."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.cluster.harness import ROOT, SYSTEM, Cluster, run
from tests.cluster.world import MACHINE_FILE, ClusterWorld, place_machine

from tangram.base.clock import SystemClock
from tangram.hardware.machines import read_machine
from tangram.playground.scenarios.reading import load_scenario
from tangram.playground.scenarios.runner import Runner

pytestmark = pytest.mark.cluster

FILES = sorted((ROOT / "tests" / "scenarios").glob("*.yaml"))


@pytest.fixture(scope="module")
def by_file(deployed: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Both nodes simulate what a file of theirs says, and read it again every second."""
    values = tmp_path_factory.mktemp("values") / "values.yaml"
    nodes = {node: {"simulate": MACHINE_FILE} for node in ClusterWorld.nodes}
    values.write_text(yaml.safe_dump({"node": {"config": {"rescanIntervalS": 1, "nodes": nodes}}}))
    for node, machine in zip(ClusterWorld.nodes, ("a100-sxm4-80gb-x8", "h100-sxm5-80gb-x8"), strict=True):
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


def _apply_chart(cluster: Cluster, *values: Path) -> None:
    files = (ROOT / "deploy" / "values-simulated.yaml", *values)
    arguments = [argument for file in files for argument in ("--values", str(file))]
    cluster.kubectl("apply", "-f", "-", stdin=run(str(ROOT / "hack" / "render"), *arguments))
    cluster.kubectl("rollout", "status", "daemonset/tangram-node", "-n", SYSTEM, "--timeout=120s")
    cluster.wait_components()
