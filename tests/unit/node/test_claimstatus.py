"""`status.devices`: what it says, whose entries it keeps, and when it is written at all."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.node.support import NODE, POOL, Node, backend, make_claim

from tangram import DRIVER_NAME
from tangram.node.claimstatus import failed_entries, merged, prepared_entries

NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path, hardware=backend("dgx-1v"))


async def test_a_prepared_claim_says_what_it_got(node: Node) -> None:
    held, _ = await node.preparer.prepare(make_claim(node.devices[:2], shareID="0a"))
    first, second = prepared_entries(held, node.inventory, node_name=NODE)
    assert first["driver"] == DRIVER_NAME
    assert (first["pool"], first["device"], first["shareID"]) == (POOL, node.devices[0], "0a")
    assert first["conditions"] == [
        {
            "type": "Ready",
            "status": "True",
            "reason": "Prepared",
            "message": "ready for containers on node node-1",
        }
    ]
    data = first["data"]
    assert data["uuid"] == node.gpu(node.devices[0])
    assert data["productName"] == "Tesla V100-SXM2-32GB"
    assert data["memory"].endswith("Gi")
    assert data["nvlinkPeers"] == 4
    assert set(data["linkedDevices"]) <= {node.devices[1]}
    # Links are the same from both ends.
    assert data["linkedDevices"].get(node.devices[1]) == second["data"]["linkedDevices"].get(node.devices[0])


async def test_all_links_within_a_claim(node: Node) -> None:
    held, _ = await node.preparer.prepare(make_claim(node.devices))
    entries = prepared_entries(held, node.inventory, node_name=NODE)
    assert [len(entry["data"]["linkedDevices"]) for entry in entries] == [4] * 8
    assert all(sum(entry["data"]["linkedDevices"].values()) == 6 for entry in entries)


async def test_a_gpu_that_fell_ill_is_not_ready(node: Node) -> None:
    held, _ = await node.preparer.prepare(make_claim(node.devices[:2]))
    assert node.inventory is not None
    inventory = replace(node.inventory, unhealthy={node.gpu(node.devices[1]): "GPU is lost"})
    well, ill = prepared_entries(held, inventory, node_name=NODE)
    assert well["conditions"][0]["status"] == "True"
    assert ill["conditions"][0] == {
        "type": "Ready", "status": "False", "reason": "GpuUnhealthy", "message": "GPU is lost",
    }  # fmt: skip


async def test_without_an_inventory_there_is_less_to_say(node: Node) -> None:
    held, _ = await node.preparer.prepare(make_claim(node.devices[:1]))
    (entry,) = prepared_entries(held, None, node_name=NODE)
    assert entry["data"] == {"uuid": node.gpu(node.devices[0])}


def test_a_failure_is_told_for_each_allocated_device_once() -> None:
    own = {"request": "gpu", "driver": DRIVER_NAME, "pool": POOL, "device": "gpu-1"}
    claim = make_claim([own, own, {**own, "shareID": "x"}, {**own, "driver": "other"}, {**own, "device": ""}])
    entries = failed_entries(claim, "no " * 1000)
    assert [(entry["device"], entry.get("shareID")) for entry in entries] == [("gpu-1", None), ("gpu-1", "x")]
    assert entries[0]["conditions"][0]["status"] == "False"
    assert entries[0]["conditions"][0]["reason"] == "PrepareFailed"
    assert len(entries[0]["conditions"][0]["message"]) == 1024
    assert "data" not in entries[0]
    assert failed_entries(make_claim([], allocated=False), "x") == []


FOREIGN = {"driver": "nic.example.com", "pool": "p", "device": "nic-0", "networkData": {"unknown": [1]}}


def test_merging_keeps_the_entries_of_others_as_read() -> None:
    own = failed_entries(make_claim(["gpu-1"]), "first")
    written = merged([FOREIGN, {"driver": DRIVER_NAME, "pool": "old", "device": "gone"}], own, now=NOW)
    assert written is not None
    assert written[0] == FOREIGN
    assert [entry["device"] for entry in written] == ["nic-0", "gpu-1"]
    assert written[1]["conditions"][0]["lastTransitionTime"] == NOW


def test_nothing_is_written_when_nothing_changed() -> None:
    own = failed_entries(make_claim(["gpu-1", "gpu-2"]), "first")
    written = merged([FOREIGN], own, now=NOW)
    assert written is not None
    assert merged(written, own, now=LATER) is None
    assert merged(list(reversed(written)), own, now=LATER) is None


def test_the_transition_time_changes_with_the_status_only(node: Node) -> None:
    first = merged([], failed_entries(make_claim(["gpu-1"]), "first"), now=NOW)
    assert first is not None
    second = merged(first, failed_entries(make_claim(["gpu-1"]), "second"), now=LATER)
    assert second is not None
    assert second[0]["conditions"][0]["message"] == "second"
    assert second[0]["conditions"][0]["lastTransitionTime"] == NOW
    ready = [{**second[0], "conditions": [{"type": "Ready", "status": "True", "reason": "Prepared"}]}]
    third = merged(second, ready, now=LATER)
    assert third is not None
    assert third[0]["conditions"][0]["lastTransitionTime"] == LATER


@pytest.mark.parametrize("conditions", [None, [], [None], ["x"], [{}], [{"type": None}]])
def test_strange_conditions_of_before(conditions: object) -> None:
    own = failed_entries(make_claim(["gpu-1"]), "first")
    before = [{**own[0], "conditions": conditions}]
    written = merged(before, own, now=NOW)
    assert written is not None
    assert written[0]["conditions"][0]["lastTransitionTime"] == NOW
