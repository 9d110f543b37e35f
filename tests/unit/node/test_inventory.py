"""What a node publishes: wire form, layout, and GPUs that stop answering."""

from dataclasses import replace

import pytest
from tests.unit.node.support import NODE, POOL, backend, inventory_of

from tangram.base.errors import DriverUnavailableError
from tangram.kubeletplugin.slice_limits import check_pool
from tangram.model.gpu import Machine
from tangram.node.inventory import merge, without_driver
from tangram.node.pools import pools


@pytest.mark.parametrize("machine", ["a100-sxm4-80gb-x8", "h100-sxm5-80gb-x8", "dgx-1v", "t4-x4"])
def test_one_slice_for_each_gpu_in_order(machine: str) -> None:
    inventory = inventory_of(backend(machine))
    published = pools(inventory, node_name=NODE, allocator="controller")
    assert list(published) == [POOL]
    check_pool(pool_name=POOL, pool=published[POOL])
    names = [[device["name"] for device in each.devices] for each in published[POOL].slices]
    assert names == [[name] for name in inventory.devices]
    uuids = [
        device["attributes"]["uuid"]["string"] for each in published[POOL].slices for device in each.devices
    ]
    assert uuids == sorted(uuids)


def test_one_slice_for_all_where_slices_are_not_walked_in_order() -> None:
    inventory = inventory_of(backend())
    (single,) = pools(inventory, node_name=NODE, allocator="scheduler", one_slice=True)[POOL].slices
    assert [device["name"] for device in single.devices] == list(inventory.devices)
    assert {device["attributes"]["allocator"]["string"] for device in single.devices} == {"scheduler"}


def test_the_wire_form_of_a_device() -> None:
    inventory = inventory_of(backend())
    device = pools(inventory, node_name=NODE, allocator="controller")[POOL].slices[0].devices[0]
    attributes = device["attributes"]
    assert attributes["type"] == {"string": "gpu"}
    assert attributes["healthy"] == {"bool": True}
    assert attributes["ordinal"] == {"int": 0}
    assert attributes["nvlinkPeers"] == {"int": 7}
    assert attributes["cudaComputeCapability"] == {"version": "8.0.0"}
    assert "resource.kubernetes.io/pcieRoot" in attributes
    capacity = {name: amount["value"] for name, amount in device["capacity"].items()}
    assert capacity == {"memory": "80Gi", "multiprocessors": "108", "memorySlices": "8", "computeSlices": "7"}


def test_a_node_without_gpus_has_an_empty_pool() -> None:
    published = pools(merge(None, Machine(gpus=()), held=frozenset()), node_name=NODE, allocator="controller")
    assert published[POOL].slices == ()


def test_a_lost_gpu_goes_unless_it_is_held() -> None:
    hardware = backend()
    before = inventory_of(hardware)
    free, held = before.machine.gpus[0].uuid, before.machine.gpus[1].uuid
    hardware.lose(free, held)
    now = merge(before, hardware.discover(), held=frozenset({held}))
    assert [gpu.uuid for gpu in now.machine.gpus] == [gpu.uuid for gpu in before.machine.gpus[1:]]
    assert now.unhealthy == {held: "GPU is lost"}
    assert held in now.nodes
    assert set(now.devices) == set(before.devices) - {next(iter(before.devices))}
    devices = {
        device["attributes"]["uuid"]["string"]: device["attributes"]["healthy"]["bool"]
        for each in pools(now, node_name=NODE, allocator="controller")[POOL].slices
        for device in each.devices
    }
    assert devices.pop(held) is False
    assert set(devices.values()) == {True}
    later = merge(now, hardware.discover(), held=frozenset())
    assert held not in {gpu.uuid for gpu in later.machine.gpus}
    assert later.unhealthy == {}
    hardware.recover(free, held)
    assert merge(later, hardware.discover(), held=frozenset()).machine.gpus == before.machine.gpus


def test_a_gpu_that_vanished_says_so() -> None:
    before = inventory_of(backend())
    gone = before.machine.gpus[0]
    now = merge(before, replace(before.machine, gpus=before.machine.gpus[1:]), held=frozenset({gone.uuid}))
    assert now.unhealthy == {gone.uuid: "the GPU is not there any more"}
    assert now.gpu(gone.uuid) == gone


def test_without_the_driver_everything_stays_and_nothing_is_usable() -> None:
    before = inventory_of(backend())
    now = without_driver(before, "driver not loaded")
    assert now.machine == before.machine
    assert set(now.unhealthy) == {gpu.uuid for gpu in before.machine.gpus}
    assert set(now.unhealthy.values()) == {"driver not loaded"}


def test_device_nodes_are_never_none() -> None:
    inventory = inventory_of(backend())
    uuid = inventory.machine.gpus[0].uuid
    assert inventory.device_nodes(uuid)[0].path.startswith("/dev/nvidia")
    for broken in (
        replace(inventory, nodes={}),
        replace(inventory, nodes={uuid: ()}),
        replace(inventory, control_nodes=()),
    ):
        with pytest.raises(DriverUnavailableError, match=uuid):
            broken.device_nodes(uuid)
