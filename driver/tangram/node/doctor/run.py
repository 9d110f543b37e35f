"""All checks, beside each other where they do not need each other; none may keep the others waiting."""

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from tangram.base.clock import Clock
from tangram.base.deadline import within_deadline
from tangram.base.errors import TangramError
from tangram.hardware.nvmldetails import GpuDetails, gpu_details
from tangram.hardware.workers import Workers
from tangram.model.gpu import Machine
from tangram.node import sight
from tangram.node.doctor import cluster, driver, local
from tangram.node.doctor.check import Check, fail
from tangram.node.doctor.driver import Roots
from tangram.node.settings import NodeSettings

DEADLINE_S = 10.0
"""For each group of checks of files: those of a driver that hangs may hang too."""
_HUNG = "look at the kernel log for what hangs; the node may need a reboot"


async def examine(
    settings: NodeSettings,
    *,
    workers: Workers,
    clock: Clock,
    roots: Roots | None = None,
    deadline_s: float = DEADLINE_S,
) -> list[Check]:
    """Every check, in the order in which one mends a node. `workers` are used up."""
    places = roots or Roots()
    real = workers.backend_name != "simulated"

    async def group(name: str, checks: Callable[[], Iterable[Check]]) -> list[Check]:
        return await asyncio.to_thread(_bounded, name, checks, deadline_s)

    files = sight.look_at_files(settings)
    try:
        # First, while nothing else takes this process's time.
        plugin = await sight.look_at_plugin(settings, clock=clock)
        gpus, api, asked, of_driver = await asyncio.gather(
            sight.look_at_gpus(settings, files, workers=workers, clock=clock),
            sight.look_at_api(settings, files.held.claims.values(), clock=clock),
            _api_server(settings, clock),
            group("driver", partial(_driver, settings, places, real=real)),
        )
        seen = sight.Sight(files=files, gpus=gpus, plugin=plugin, api=api)
        machine = gpus.inventory.machine if gpus.inventory else None
        found = await asyncio.gather(
            group("node", partial(_local, settings, seen)),
            group("device-nodes", partial(_hardware, settings, seen, places, machine, real=real)),
            group("mps", partial(driver.mps, settings)),
        )
    finally:
        await workers.close()
    of_node, of_hardware, of_mps = found
    return [*of_node, *of_driver, *of_hardware, *of_mps, *asked, *cluster.published(seen)]


def _bounded(name: str, checks: Callable[[], Iterable[Check]], deadline_s: float) -> list[Check]:
    found: list[Check] = []
    try:
        within_deadline(lambda: found.extend(checks()), seconds=deadline_s)
    except TimeoutError:
        return [*found, fail(name, f"the look did not end within {deadline_s:g} s", fix=_HUNG)]
    except (TangramError, OSError) as error:
        return [*found, fail(name, f"cannot be looked at: {error}", fix="run it as root, on the right node")]
    return found


def _local(settings: NodeSettings, seen: sight.Sight) -> Iterator[Check]:
    yield from local.rights(os.geteuid())
    yield from local.directories(settings)
    yield from local.disk([sight.plugin_directory(settings), Path(settings.cdi_root)])
    yield from local.processes(settings, seen.plugin)
    yield from local.held_files(seen.files)
    # Of the same moment: a plugin at work has changed both while the GPUs were looked at.
    yield from local.cdi_files(settings, sight.look_at_files(settings))
    yield from local.drains(seen.files)


def _driver(settings: NodeSettings, roots: Roots, *, real: bool) -> Iterator[Check]:
    if not real:
        yield from driver.only_simulated()
        return
    yield from driver.driver_files(settings)
    yield from driver.kernel_module(settings, roots)


def _hardware(
    settings: NodeSettings, seen: sight.Sight, roots: Roots, machine: Machine | None, *, real: bool
) -> Iterator[Check]:
    if real:
        yield from driver.device_nodes(machine, roots)
    yield from driver.gpus(seen)
    if real:
        yield from driver.mig(settings, seen.gpus, roots, euid=os.geteuid())
        yield from driver.details(machine, _details)


def _details(machine: Machine) -> list[GpuDetails]:
    return [gpu_details(gpu.uuid) for gpu in machine.gpus]


async def _api_server(settings: NodeSettings, clock: Clock) -> list[Check]:
    try:
        return await sight.with_client(
            settings, lambda client: cluster.api_server(client, settings), clock=clock
        )
    except TangramError as error:
        return cluster.no_api_server(error)
