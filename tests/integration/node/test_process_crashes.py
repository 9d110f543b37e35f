"""The real process dies in the middle of calls of the driver, again and again: its next life finishes or
undoes what it was at.

What kills it stands in the machine description, as the fault `KILL` of the simulation. The unit tests
(`test_kind_crashes.py`) kill at every step of every kind; here a process dies, with all that it remembers.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from tests.integration.node.conftest import NODE, World, until
from tests.integration.node.test_kinds import supervisor  # noqa: F401 - a fixture
from tests.integration.node.test_process import Process, Starter, start  # noqa: F401 - a fixture

from tangram import DRIVER_NAME
from tangram.base.errors import TangramError
from tangram.hardware.machines import load_machine
from tangram.hardware.machines.faultplan import Call, Fault
from tangram.hardware.mps.directory import MpsDirectory
from tangram.hardware.simulated import SimulatedBackend
from tangram.kubeletplugin.driver import ClaimReference
from tangram.model.gpu import MigMode

KILLED = 137
MIG: list[tuple[Call, bool]] = [
    ("create_gpu_instance", False),
    ("create_gpu_instance", True),
    ("create_compute_instance", False),
    ("create_compute_instance", True),
    ("mig_nodes", True),
    ("destroy_compute_instance", True),
    ("destroy_gpu_instance", False),
    ("destroy_gpu_instance", True),
]
MODE: list[tuple[Call, bool]] = [
    ("compute_mode", True),
    ("set_compute_mode", False),
    ("set_compute_mode", True),
]


class Lives:
    """The plugin on a machine whose faults end it; each `calls` is worked on by as many lives as it takes."""

    def __init__(self, world: World, starter: Starter, *, faults: list[tuple[Call, bool]], mig: bool) -> None:
        self.world, self._start = world, starter
        self.deaths = 0
        machine = load_machine("a100-pcie-80gb-x4")
        mode: MigMode = "enabled" if mig else "disabled"
        machine = msgspec.structs.replace(
            machine,
            models=tuple(msgspec.structs.replace(model, mig_mode=mode) for model in machine.models),
            faults=tuple(Fault(call=call, error="KILL", effect=effect) for call, effect in faults),
        )
        self._machine = world.root / "machine.json"
        self._machine.write_bytes(msgspec.json.encode(machine))
        self._state = world.root / "simulated"
        self.process: Process | None = None

    async def live(self) -> None:
        """A process of the plugin that the kubelet knows; those that die before it is are counted."""
        while True:
            before = self.world.kubelet.plugins(DRIVER_NAME)
            self.process = await self._start(
                "--simulate", str(self._machine), "--simulate-state-dir", str(self._state),
                "--kinds", "gpu,mps,mig", "--exclusive-compute-mode", "true",
            )  # fmt: skip
            await until(partial(self._serves_or_died, before), timeout_s=60)
            if self.process.process.returncode is None:
                return
            self._died(await self.process.ends())

    def _serves_or_died(self, before: list[Any]) -> bool:
        assert self.process is not None
        died = self.process.process.returncode is not None
        return died or self.world.kubelet.plugins(DRIVER_NAME) not in (before, [])

    async def call(self, what: Callable[..., Any], claim: ClaimReference) -> bool:
        """Whether the process has outlived a call of the kubelet."""
        assert self.process is not None
        try:
            await what(claim)
        except (TangramError, grpc.aio.AioRpcError):
            self._died(await self.process.ends())
            return False
        return True

    def _died(self, code: int) -> None:
        assert self.process is not None
        assert code == KILLED, self.process.text
        self.deaths += 1

    def hardware(self) -> SimulatedBackend:
        """What is on the GPUs, whoever lives."""
        return SimulatedBackend.load(str(self._machine), node_name=NODE, state_directory=self._state)

    def changed(self) -> list[object]:
        """All instances, and the compute modes that are not as they were."""
        gpus = self.hardware()
        found: list[object] = []
        for gpu in gpus.discover().gpus:
            found += gpus.gpu_instances(gpu.uuid)
            mode = gpus.compute_mode(gpu.uuid)
            found += [mode] if mode != "default" else []
        return found

    def struck(self) -> int:
        """How many of the faults have ended a process."""
        return len([path for path in self._state.glob("happened-*") if path.suffix != ".lock"])

    def notes(self) -> list[Path]:
        """What is owed to GPUs."""
        return list((self.world.root / "plugins" / DRIVER_NAME / "gpus").glob("GPU-*"))


@pytest.mark.thorough
@pytest.mark.parametrize("again", [True, False], ids=["kubelet-asks-again", "nobody-asks-again"])
@pytest.mark.parametrize("kind", ["mig", "gpu", "mps"])
async def test_the_plugin_is_killed_inside_calls_of_the_driver(
    world: World,
    start: Starter,  # noqa: F811
    supervisor: MpsDirectory,  # noqa: F811
    kind: str,
    again: bool,
) -> None:
    faults = MIG if kind == "mig" else MODE
    lives = Lives(world, start, faults=faults, mig=kind == "mig")
    await lives.live()
    await world.until_published(4 * (25 if kind == "mig" else 2))
    suffix = {"mig": "mig-3g40gb-4", "gpu": "", "mps": "mps"}[kind]
    name = next(each for each in world.devices() if "-".join(each.split("-")[2:]) == suffix)
    number = 0

    def claim() -> ClaimReference:
        nonlocal number
        number += 1
        return world.claim(f"c{number}", [name])

    current = claim()
    while not await lives.call(world.prepared, current):
        if not again:
            world.free(current)
        await lives.live()
        if not again:
            # The new process has tidied up before it serves.
            await until(lambda: world.state() == set())
            assert lives.changed() == []
            current = claim()
    assert len(lives.changed()) == 1
    assert len(world.state()) == 2
    while not await lives.call(world.unprepare, current):
        await lives.live()
        if not again:
            await until(lambda: world.state() == set())
            break
    assert world.state() == set()
    assert lives.changed() == []
    assert lives.notes() == []
    assert supervisor.members() == {}
    assert lives.deaths == lives.struck()
    if again:
        assert lives.deaths == len(faults)
    else:
        assert lives.deaths >= len(faults) - 2  # the last ones are not met: it went well before
    # And the GPU serves.
    last = claim()
    while not await lives.call(world.prepared, last):
        await lives.live()
    while not await lives.call(world.unprepare, last):
        await lives.live()
    assert (world.state(), lives.changed()) == (set(), [])
