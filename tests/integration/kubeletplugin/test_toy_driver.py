"""A complete DRA driver in fifty lines, for widgets, and a day of its life: how the library is used."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tangram.base.clock import SystemClock
from tangram.base.errors import DeviceHeldError
from tangram.kube.client import Client
from tangram.kube.objects import ResourceClaim
from tangram.kube.resources import DEVICE_CLASSES, NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from tangram.kubeletplugin.driver import ClaimReference, PreparedDevice
from tangram.kubeletplugin.plugin import KubeletPlugin
from tangram.kubeletplugin.publisher import SlicePublisher
from tangram.kubeletplugin.slices import Pool, Slice
from tangram.testing.apiserver import FakeApiServer
from tangram.testing.kubelet import FakeKubelet

NAME = "widgets.example.com"

# --- the driver --------------------------------------------------------------------------------------------


class Widgets:
    """Two widgets; who holds which is kept in memory here, and on disk by a driver for real devices."""

    def __init__(self) -> None:
        self.held: dict[str, str] = {}

    async def prepare(self, claim: ResourceClaim) -> Sequence[PreparedDevice]:
        assert claim.allocation is not None, "the library has seen to that"
        results = [each for each in claim.allocation.devices.results or () if each.driver == NAME]
        for result in results:
            holder = self.held.get(result.device, claim.metadata.uid)
            if holder != claim.metadata.uid:
                raise DeviceHeldError(f"{result.device} is held", device=result.device, holder=holder)
        self.held |= {result.device: claim.metadata.uid for result in results}
        return [
            PreparedDevice(
                request_names=(result.request,),
                pool_name=result.pool,
                device_name=result.device,
                cdi_device_ids=(f"example.com/widget={result.device}",),
            )
            for result in results
        ]

    async def unprepare(self, claim: ClaimReference) -> None:
        self.held = {device: holder for device, holder in self.held.items() if holder != claim.uid}


async def serve(*, client: Client, kubelet_directory: Path, node_name: str) -> None:
    """What the driver's process does until it is told to end."""
    clock = SystemClock()
    publisher = SlicePublisher(client=client, driver_name=NAME, node_name=node_name, clock=clock)
    widgets = ({"name": "small", "attributes": {"size": {"int": 1}}}, {"name": "large"})
    publisher.publish({node_name: Pool(slices=(Slice(devices=widgets),))})
    plugin = KubeletPlugin(
        driver_name=NAME, driver=Widgets(), client=client, clock=clock, kubelet_directory=kubelet_directory
    )
    await plugin.start()
    try:
        await publisher.run()
    finally:
        await plugin.stop(grace_s=1)


# --- a day of its life -------------------------------------------------------------------------------------


def allocated(server: FakeApiServer, name: str, device: str) -> ClaimReference:
    """A claim that the scheduler has allocated."""
    result = {"request": "widget", "driver": NAME, "pool": "node-1", "device": device}
    request = {"name": "widget", "exactly": {"deviceClassName": NAME}}
    created: dict[str, Any] = server.create(
        RESOURCE_CLAIMS,
        {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": {"requests": [request]}},
            "status": {"allocation": {"devices": {"results": [result]}}},
        },
    )
    return ClaimReference(namespace="default", name=name, uid=created["metadata"]["uid"])


def sockets(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_socket()]


async def test_a_day_of_its_life(kubelet_directory: Path, tmp_path: Path) -> None:
    async with FakeApiServer() as server:
        server.create(NODES, {"metadata": {"name": "node-1"}})
        server.create(DEVICE_CLASSES, {"metadata": {"name": NAME}, "spec": {}})
        client = await Client.connect(
            kubeconfig=server.kubeconfig(tmp_path / "kubeconfig"), user_agent="widgets/1"
        )
        process = asyncio.create_task(
            serve(client=client, kubelet_directory=kubelet_directory, node_name="node-1")
        )
        async with FakeKubelet(kubelet_directory, client=client, node_name="node-1") as kubelet:
            # The kubelet finds it, the scheduler sees its devices.
            await kubelet.plugin(NAME)
            await server.until(lambda: server.objects(RESOURCE_SLICES))
            (published,) = server.objects(RESOURCE_SLICES)
            assert [device["name"] for device in published["spec"]["devices"]] == ["small", "large"]

            # A pod comes; a second one, by a mistake of somebody's, gets the same widget.
            first, second = allocated(server, "first", "small"), allocated(server, "second", "small")
            answers = await kubelet.prepare(NAME, [first])
            assert answers[first.uid].devices[0].cdi_device_ids == ("example.com/widget=small",)
            answers = await kubelet.prepare(NAME, [second])
            assert answers[second.uid].error == "prepare of claim default/second: small is held"

            # The kubelet restarts and wipes the slices, as it does; the pod goes, the other one gets it.
            await kubelet.restart(wipe_slices=True)
            assert await kubelet.unprepare(NAME, [first]) == {first.uid: ""}
            answers = await kubelet.prepare(NAME, [second])
            assert answers[second.uid].error == ""
            await server.until(lambda: server.objects(RESOURCE_SLICES))

            # The process ends and leaves no socket behind; the slices are there for its successor.
            process.cancel()
            await asyncio.wait({process})
            assert sockets(kubelet_directory) == []
        assert server.objects(RESOURCE_SLICES)
        await client.close()
