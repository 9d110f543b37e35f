"""Preparing claims with GPUClaimParameters: what the allocated devices must keep to."""

from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.support import Node, backend, make_claim

from tangram import DRIVER_NAME
from tangram.base.errors import ClaimNotPreparableError, TangramError

PARAMETERS = {"apiVersion": "gpu.resource.admin/v1alpha1", "kind": "GPUClaimParameters"}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def config(*, driver: str = DRIVER_NAME, requests: list[str] | None = None, **fields: Any) -> dict[str, Any]:
    return {
        "source": "FromClaim",
        "requests": requests,
        "opaque": {"driver": driver, "parameters": PARAMETERS | fields},
    }


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ([config(memoryGB=80, gpuType="A100", shPolicy="exclusive")], ""),
        ([config(memoryGB=96)], "with 80Gi memory, less than 96 GB"),
        ([config(gpuType="H100")], "of type A100, not H100"),
        ([config(gpuType="H100"), config(gpuType="A100")], ""),
        ([config(gpuType="H100", requests=["either"])], ""),
        ([config(gpuType="H100", requests=["gpu"])], "of type A100, not H100"),
        ([config(gpuType="H100", driver="other.example.com")], ""),
        ([config(memory=80)], "config[0].opaque.parameters.memory: is not a field"),
        ([config(), config(shPolicy="mps")], "shPolicy"),
        ([config(memoryGB="80")], "config[0].opaque.parameters.memoryGB: must be an integer"),
        ([{"opaque": {"driver": DRIVER_NAME}}], "config[0].opaque.parameters: must be an object"),
        ([{"opaque": None}, {}], ""),
    ],
)
async def test_parameters(node: Node, entries: list[dict[str, Any]], text: str) -> None:
    claim = make_claim([node.devices[0]], config=entries)
    if not text:
        await node.preparer.prepare(claim)
        return
    with pytest.raises(TangramError) as caught:
        await node.preparer.prepare(claim)
    assert text in caught.value.cause
    assert "ns/claim-1" in caught.value.cause
    assert node.files() == set()


async def test_parameters_of_a_subrequest(node: Node) -> None:
    entries = [config(gpuType="H100", requests=["either/big"]), config(gpuType="A100", requests=["either"])]
    await node.preparer.prepare(make_claim([node.devices[0]], request="either/small", config=entries))
    with pytest.raises(ClaimNotPreparableError, match="not H100"):
        await node.preparer.prepare(
            make_claim(
                [node.devices[1]],
                number=2,
                request="either/big",
                config=[config(gpuType="H100", requests=["either/big"])],
            )
        )


@pytest.mark.parametrize(
    ("machine", "positions", "size", "linked"),
    [
        ("a100-sxm4-80gb-x8", [0], 4, False),
        ("a100-sxm4-80gb-x8", [0, 1, 2, 3, 4, 5], 4, False),
        ("a100-sxm4-80gb-x8", [0, 1, 2, 3], 4, True),
        ("a100-sxm4-80gb-x8", [0, 1, 2, 3, 4, 5, 6, 7], 2, True),
        ("t4-x4", [0, 1], 2, False),
        ("t4-x4", [0, 1], 1, True),
        ("dgx-1v", list(range(8)), 8, False),
        ("dgx-1v", list(range(8)), 4, True),
    ],
)
async def test_linked_sets_that_kube_scheduler_does_not_know_of(
    tmp_path: Path, machine: str, positions: list[int], size: int, linked: bool
) -> None:
    node = Node(tmp_path, hardware=backend(machine))
    devices = [node.devices[position] for position in positions]
    claim = make_claim(devices, config=[config(nvLinkPeers=size)])
    if linked:
        await node.preparer.prepare(claim)
        return
    with pytest.raises(ClaimNotPreparableError, match=rf"\({len(devices)}\) .* sets of {size} \(nvLinkPeers"):
        await node.preparer.prepare(claim)
    assert node.files() == set()
