"""Claims of every kind at the node plugin's socket: alone, many at once, beside a GPU that hangs; and what
a reconcile pass costs.
"""

import asyncio
import contextlib
import re
import sys
import tempfile
import time
from pathlib import Path

from prometheus_client import CollectorRegistry

from benchlib.calls import Caller, quiet, timed
from benchlib.claims import allocated_claim, delete_claim
from benchlib.processes import Process
from benchlib.world import GPUS, NODE, World
from clusterlib.errors import ClusterError
from clusterlib.steps import Step
from tangram.base.errors import TangramError
from tangram.base.logs import configure_logging
from tangram.hardware.machines import read_machine
from tangram.hardware.simulated import SimulatedBackend
from tangram.kube.client import Client
from tangram.kubeletplugin.driver import ClaimReference
from tangram.model.devices import short_id_of, short_ids
from tangram.node.app import SWITCH_INTERVAL_S, NodePlugin
from tangram.node.backends import choose_backend
from tangram.node.settings import NodeSettings

MACHINE = "h100-sxm5-80gb-x8"
"""All kinds at once: its MIG mode is switched without a reset."""
BURST = 64
SERIES = (
    "mps_join", "mps_leave", "timeslice", "timeslice_end", "mig", "mig_end",
    "mig_beside_hung", "mig_end_beside_hung", "burst", "burst_all", "burst_unprepare", "reconcile",
)  # fmt: skip
MIG_PER_GPU = 7
SETTINGS: dict[str, str | int] = {
    "simulate": MACHINE,
    "kinds": "gpu,mps,timeslice,mig",
    "migMode": "dynamic",
    "replicas": BURST // GPUS,
}
_SMALLEST = re.compile(r"-mig-1g10gb-\d\Z")
_WARM_UP = 3


async def measure_kinds(samples: int, bursts: int, passes: int, progress: Step) -> dict[str, list[float]]:
    """Milliseconds by series."""
    found: dict[str, list[float]] = {name: [] for name in SERIES}
    async with World(SETTINGS) as world:
        mps = await world.start_mps()
        node = await world.start_node()
        await node.during(world.until_slices())
        await node.until_event("registered_with_kubelet")
        bench = _Kinds(world, node, Caller((await world.registered()).channel), found)
        await mps.during(bench.mps(samples, progress))
        await bench.alone("timeslice", "timeslice_end", world.device_names("timeslice"), samples, progress)
        await bench.burst(bursts, progress)
        # After the others: GPUs that are shared are not switched to MIG.
        await bench.alone("mig", "mig_end", bench.first_places(), samples, progress)
    await _beside_hung(samples, found, progress)
    found["reconcile"] = await _reconcile(passes, progress)
    return found


class _Kinds:
    def __init__(self, world: World, node: Process, plugin: Caller, found: dict[str, list[float]]) -> None:
        self._world = world
        self._node = node
        self._plugin = plugin
        self._found = found

    def first_places(self) -> list[str]:
        """One MIG device of each GPU."""
        return [name for name in self._world.device_names("mig") if name.endswith("-mig-1g10gb-0")]

    async def stuck(self, device: str) -> None:
        """A claim of a GPU that hangs. When the plugin gives up on the call, the GPU hangs on."""
        try:
            await self._plugin.timed_prepare(allocated_claim(self._world, "stuck", device))
        except TangramError:
            return
        raise ClusterError(f"{device} was to hang and does not", next_step="see the plan of faults")

    async def alone(self, begin: str, end: str, devices: list[str], samples: int, progress: Step) -> None:
        """One claim at a time, on each device in turn."""
        stem = begin.replace("_", "-")
        for number in range(-len(devices) * _WARM_UP, samples):
            progress.note(f"{begin}: {max(number, 0)} of {samples}")
            claim = allocated_claim(self._world, f"{stem}-{number + 1000}", devices[number % len(devices)])
            seen = len(self._world.server.requests)
            prepare_ms = await self._plugin.timed_prepare(claim)
            await quiet(self._world, since=seen)
            unprepare_ms = await self._plugin.timed_unprepare(claim)
            delete_claim(self._world, claim)
            if number >= 0:
                self._found[begin].append(prepare_ms)
                self._found[end].append(unprepare_ms)

    async def mps(self, samples: int, progress: Step) -> None:
        """Claims that join daemons which run already, one on each GPU."""
        devices = self._world.device_names("mps")
        anchors = [
            allocated_claim(self._world, f"anchor-{number}", name) for number, name in enumerate(devices)
        ]
        for anchor in anchors:
            await self._plugin.timed_prepare(anchor)
        await self.alone("mps_join", "mps_leave", devices, samples, progress)
        for anchor in anchors:
            await self._plugin.timed_unprepare(anchor)
            delete_claim(self._world, anchor)

    async def burst(self, rounds: int, progress: Step) -> None:
        """As when the pods of a full node all start: a call each, all at once, eight to each GPU."""
        devices = self._world.device_names("timeslice")
        for number in range(rounds):
            progress.note(f"burst of {BURST}: {number} of {rounds}")
            claims = [
                allocated_claim(self._world, f"burst-{number}-{place}", devices[place % len(devices)])
                for place in range(BURST)
            ]
            seen = len(self._world.server.requests)
            all_ms, each_ms = await timed(asyncio.gather(*map(self._plugin.timed_prepare, claims)))
            await quiet(self._world, since=seen, claims=BURST)
            unprepare_ms = await asyncio.gather(*map(self._plugin.timed_unprepare, claims))
            for claim in claims:
                delete_claim(self._world, claim)
            self._found["burst"] += each_ms
            self._found["burst_all"].append(all_ms)
            self._found["burst_unprepare"] += unprepare_ms


async def _beside_hung(samples: int, found: dict[str, list[float]], progress: Step) -> None:
    """MIG claims on seven GPUs, while a claim on the eighth waits for a call of NVML that does not return."""
    ids = short_ids(gpu.uuid for gpu in SimulatedBackend.load(MACHINE, node_name=NODE).discover().gpus)
    uuid, short_id = next(iter(ids.items()))
    fault = f"faults: [{{call: create_gpu_instance, error: HANG, target: {uuid}, times: always}}]\n"
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "machine.yaml")
        await asyncio.to_thread(file.write_bytes, read_machine(MACHINE) + fault.encode())
        async with World({**SETTINGS, "simulate": str(file)}) as world:
            node = await world.start_node()
            await node.during(world.until_slices())
            await node.until_event("registered_with_kubelet")
            bench = _Kinds(world, node, Caller((await world.registered()).channel), found)
            places = bench.first_places()
            hung = next(name for name in places if short_id_of(name) == short_id)
            stuck = asyncio.create_task(bench.stuck(hung))
            try:
                others = [name for name in places if name != hung]
                await bench.alone("mig_beside_hung", "mig_end_beside_hung", others, samples, progress)
            finally:
                stuck.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await stuck


async def _reconcile(passes: int, progress: Step) -> list[float]:
    """Milliseconds of passes over a node full of MIG instances, in this process."""
    configure_logging(level="error")
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    async with World(SETTINGS) as world:
        directory = world.directory
        settings = NodeSettings(
            node_name=NODE,
            kubelet_dir=str(directory),
            cdi_root=str(directory / "cdi"),
            metrics_address="",
            simulate=MACHINE,
            kinds="mig",
            mig_mode="dynamic",
        )
        client = await Client.connect(kubeconfig=world.kubeconfig(), user_agent="bench")
        plugin = NodePlugin(
            settings, client=client, backend=choose_backend(settings), registry=CollectorRegistry()
        )
        running = asyncio.create_task(plugin.run())
        try:
            await world.until_slices()
            caller = Caller((await world.registered()).channel)
            places = [name for name in world.device_names("mig") if _SMALLEST.search(name)]
            claims: list[ClaimReference] = []
            for number, device in enumerate(places):
                claims.append(allocated_claim(world, f"held-{number}", device))
                await caller.timed_prepare(claims[-1])
            found = []
            for number in range(passes):
                progress.note(f"reconcile over {len(claims)} claims: {number} of {passes}")
                started_s = time.perf_counter()
                await plugin.reconciler.pass_once()
                found.append(1000 * (time.perf_counter() - started_s))
            return found
        finally:
            running.cancel()
            await asyncio.wait({running})
            await client.close()
