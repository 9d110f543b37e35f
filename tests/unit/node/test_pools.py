"""Devices of all kinds in slices: layout, counters where kube-scheduler allocates, limits of the API."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.model.boards import ALL, board, instance, machine
from tests.unit.node.support import NODE, POOL

from tangram.hardware.machines.migtables import mig_tables
from tangram.kubeletplugin.slice_limits import check_pool
from tangram.kubeletplugin.slices import Pool
from tangram.model.gpu import Machine
from tangram.node.inventory import Inventory, Policy
from tangram.node.pools import Counters, pools


def pool(of: Machine, *, dynamic: bool = True, foreign: Any = None, **how: Any) -> Pool:
    inventory = Inventory(
        machine=of, policy=Policy(kinds=ALL, dynamic=dynamic), foreign=foreign if foreign is not None else {}
    )
    return pools(inventory, node_name=NODE, **{"allocator": "controller", **how})[POOL]


def devices(of: Pool) -> list[dict[str, Any]]:
    return [dict(device) for each in of.slices for device in each.devices]


def kinds(of: Pool) -> set[str]:
    return {device["attributes"]["type"]["string"] for device in devices(of)}


@pytest.mark.parametrize("counters", ["none", "probed", "consumed"])
def test_no_counter_is_written_where_the_controller_allocates(counters: Counters) -> None:
    """kube-scheduler would walk them in time quadratic in the number of MIG nodes."""
    text = json.dumps(
        [
            [dict(device) for device in each.devices] + list(each.shared_counters)
            for each in pool(board("h100-80gb", gpus=8), counters=counters).slices
        ]
    )
    assert "ounter" not in text


def test_all_kinds_with_counters_where_the_server_keeps_them() -> None:
    found = pool(board("h100-80gb", gpus=9), allocator="scheduler", counters="consumed")
    check_pool(pool_name=POOL, pool=found)
    assert kinds(found) == set(ALL)
    assert all(device["consumesCounters"] for device in devices(found))
    assert [len(each.devices) for each in found.slices] == [28] * 9 + [0, 0]
    assert [len(each.shared_counters) for each in found.slices] == [0] * 9 + [8, 1]


@pytest.mark.parametrize("counters", ["none", "probed"])
def test_without_counters_only_what_cannot_overlap(counters: Counters) -> None:
    of = board("h100-80gb", gpus=2, mode="disabled")
    found = pool(of, allocator="scheduler", counters=counters)
    check_pool(pool_name=POOL, pool=found)
    assert kinds(found) == {"gpu"}
    assert not any(device.get("consumesCounters") for device in devices(found))
    assert any(each.shared_counters for each in found.slices) is (counters == "probed")
    # In MIG mode placements overlap one another; instances that exist do not.
    on = machine("a100-sxm4-80gb-x8", mode="enabled")
    assert kinds(pool(on, allocator="scheduler", counters=counters)) == set()
    foreign = {on.gpus[0].uuid: (instance(9, 0), instance(9, 4, number=2))}
    static = pool(on, allocator="scheduler", counters=counters, foreign=foreign)
    assert len(devices(static)) == 2


def test_one_slice_holds_whole_gpus_alone() -> None:
    of = board("h100-80gb", gpus=8)
    (single,) = pool(of, allocator="scheduler", one_slice=True).slices
    assert [device["attributes"]["type"]["string"] for device in single.devices] == ["gpu"] * 8


def test_the_wire_form_of_shares() -> None:
    shares = {
        device["attributes"]["type"]["string"]: device
        for device in devices(pool(machine("t4-x4")))
        if device.get("allowMultipleAllocations")
    }
    assert set(shares) == {"mps", "timeslice"}
    assert shares["mps"]["capacity"]["cores"] == {
        "value": "100",
        "requestPolicy": {"default": "25", "validRange": {"min": "1", "max": "100", "step": "1"}},
    }
    assert shares["timeslice"]["capacity"]["memory"] == {
        "value": "15Gi",
        "requestPolicy": {
            "default": "3840Mi",
            "validRange": {"min": "256Mi", "max": "15Gi", "step": "1Mi"},
        },
    }


@settings(max_examples=60)
@given(
    gpus=st.integers(1, 16),
    table=st.sampled_from(mig_tables()),
    counters=st.sampled_from(["none", "probed", "consumed"]),
    scheduler=st.booleans(),
    dynamic=st.booleans(),
)
def test_p74_any_number_of_gpus_of_any_board_keeps_the_limits(
    gpus: int, table: str, counters: Counters, scheduler: bool, dynamic: bool
) -> None:
    """Also with a taint on every device, which halves what a slice may hold."""
    found = pool(
        board(table, gpus=gpus),
        allocator="scheduler" if scheduler else "controller",
        counters=counters,
        dynamic=dynamic,
    )
    taint = {"key": "gpu.resource.admin/unhealthy", "effect": "NoSchedule"}
    tainted = tuple(
        replace(each, devices=tuple({**device, "taints": [taint]} for device in each.devices))
        for each in found.slices
    )
    for each in (found, Pool(slices=tainted)):
        check_pool(pool_name=POOL, pool=each)
