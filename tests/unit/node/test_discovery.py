"""Looking at the GPUs: never empty on error, never more lost than what failed."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
from tests.unit.node.support import backend

from tangram.base.errors import DriverUnavailableError, HardwareTimeoutError
from tangram.hardware.backend import DeviceNode
from tangram.hardware.cdi import CdiEdits
from tangram.hardware.health import XidEvent
from tangram.hardware.machines.faultplan import Fault
from tangram.hardware.simulated import Hang, SimulatedBackend
from tangram.hardware.workers import GPU_DEADLINE_S, SYSTEM_DEADLINE_S, Workers
from tangram.model.gpu import GpuUuid
from tangram.model.mig import MigPlacement
from tangram.node.discovery import Discovery
from tangram.node.held import HeldClaim, HeldDevice, MigStep
from tangram.node.inventory import Inventory
from tangram.testing.clock import FakeClock


def holding(gpu: str, *steps: MigStep) -> HeldClaim:
    """A claim that holds (a part of) a GPU."""
    return HeldClaim(
        namespace="ns",
        name="claim",
        uid="u",
        boot_id="b",
        phase="prepared",
        devices=(HeldDevice(pool="p", device="d", uuid=gpu, request_names=("gpu",)),),
        undo=steps,
    )


class Setup:
    def __init__(self, drained: Callable[[], Mapping[GpuUuid, str]] = dict) -> None:
        self.clock = FakeClock()
        self.hardware: SimulatedBackend = backend()
        self.workers = Workers(self.hardware, clock=self.clock)
        self.held: tuple[HeldClaim, ...] = ()
        self.owed: tuple[MigStep, ...] = ()
        self.edits_error: DriverUnavailableError | None = None
        self.published: list[Inventory] = []
        self.discovery = Discovery(
            workers=self.workers,
            held=lambda: self.held,
            owed=lambda: self.owed,
            driver_edits=self.driver_edits,
            changed=self.published.append,
            clock=self.clock,
            rescan_interval_s=30.0,
            drained=drained,
        )

    def driver_edits(self) -> CdiEdits:
        if self.edits_error is not None:
            raise self.edits_error
        return CdiEdits(env=("A=b",))

    async def look_past_deadlines(self, discover: Hang, probe: Hang | None = None) -> None:
        """A look in which discovery hangs until its deadline, and then a call on a GPU too."""
        task = asyncio.create_task(self.discovery.look())
        await self.past_deadline(discover, SYSTEM_DEADLINE_S)
        if probe is not None:
            await self.past_deadline(probe, GPU_DEADLINE_S)
        await task

    async def past_deadline(self, hang: Hang, deadline_s: float) -> None:
        # Time must not move before: it would run out for calls that are about to answer.
        assert await asyncio.to_thread(hang.entered.wait, 10)
        await self.only_the_hung_call()
        await self.clock.advance(deadline_s)

    async def only_the_hung_call(self) -> None:
        """Waits until all threads but one have answered: each call sleeps on the clock meanwhile."""
        await self.clock.until_sleeping()
        async with asyncio.timeout(10):
            while self.clock.sleeping != 1:  # noqa: ASYNC110 - threads answer in real time
                await asyncio.sleep(0.001)


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    made = Setup()
    yield made
    await made.workers.close()


async def test_the_first_look(setup: Setup) -> None:
    assert setup.discovery.problem
    await setup.discovery.look()
    (inventory,) = setup.published
    assert setup.discovery.problem == ""
    assert setup.discovery.inventory is inventory
    assert len(inventory.machine.gpus) == 8
    assert set(inventory.nodes) == {gpu.uuid for gpu in inventory.machine.gpus}
    assert inventory.control_nodes
    assert inventory.driver_edits == CdiEdits(env=("A=b",))
    await setup.discovery.look()
    assert len(setup.published) == 1  # nothing changed


async def test_a_driver_that_is_not_there_publishes_nothing_and_is_retried(setup: Setup) -> None:
    setup.hardware.make_unavailable("driver not loaded")
    looks: asyncio.Queue[None] = asyncio.Queue()
    look = setup.discovery.look

    async def counted_look() -> None:
        await look()
        looks.put_nowait(None)

    setup.discovery.look = counted_look  # type: ignore[method-assign]
    loop = asyncio.create_task(setup.discovery.run())
    await looks.get()
    assert setup.published == []
    assert setup.discovery.inventory is None
    assert setup.discovery.problem == "driver not loaded"
    waits = []
    for _ in range(4):
        waits.append(await setup.clock.advance_to_next())
        await looks.get()
    assert waits[0] < waits[1] < waits[2] < waits[3] <= 45
    assert setup.published == []
    setup.hardware.make_unavailable("")
    await setup.clock.advance_to_next()
    await looks.get()
    assert len(setup.published) == 1
    assert setup.discovery.problem == ""
    loop.cancel()


async def test_a_driver_that_goes_away_leaves_the_gpus_published_but_unusable(setup: Setup) -> None:
    await setup.discovery.look()
    setup.hardware.make_unavailable("driver unloaded")
    await setup.discovery.look()
    assert len(setup.published) == 2
    assert setup.published[1].machine == setup.published[0].machine
    assert set(setup.published[1].unhealthy.values()) == {"driver unloaded"}
    assert setup.discovery.problem == "driver unloaded"
    setup.hardware.make_unavailable("")
    await setup.discovery.look()
    assert setup.published[2] == setup.published[0]


async def test_hot_plug_and_loss_are_seen(setup: Setup) -> None:
    await setup.discovery.look()
    first, second = (gpu.uuid for gpu in setup.published[0].machine.gpus[:2])
    setup.held = (holding(first),)
    setup.hardware.lose(first, second)
    await setup.discovery.look()
    now = setup.published[-1]
    assert {gpu.uuid for gpu in setup.published[0].machine.gpus} - {gpu.uuid for gpu in now.machine.gpus} == {
        second
    }
    assert set(now.unhealthy) == {first}
    assert setup.discovery.problem == ""
    setup.held = ()
    await setup.discovery.look()
    assert len(setup.published[-1].machine.gpus) == 6
    setup.hardware.recover(first, second)
    await setup.discovery.look()
    assert setup.published[-1] == setup.published[0]


async def test_a_gpu_that_hangs_costs_only_itself(setup: Setup) -> None:
    await setup.discovery.look()
    ill = setup.published[0].machine.gpus[2].uuid
    discover = setup.hardware.hang("discover")
    probe = setup.hardware.hang("probe", ill)
    await setup.look_past_deadlines(discover, probe)
    assert set(setup.published[-1].unhealthy) == {ill}
    assert len(setup.published[-1].machine.gpus) == 8
    discover.release()
    probe.release()


async def test_an_ill_gpu_stays_ill_while_another_hangs(setup: Setup) -> None:
    await setup.discovery.look()
    ill, hung = (gpu.uuid for gpu in setup.published[0].machine.gpus[:2])
    setup.discovery.heard(XidEvent(uuid=ill, xid=79))
    discover, probe = setup.hardware.hang("discover"), setup.hardware.hang("probe", hung)
    await setup.look_past_deadlines(discover, probe)
    assert set(setup.published[-1].unhealthy) == {ill, hung}
    discover.release()
    probe.release()


async def test_a_gpu_with_a_call_that_hangs_is_unhealthy_until_it_returns(setup: Setup) -> None:
    """Also where the call is a step of a claim, and looks at the GPU go well: nobody new must get it."""
    await setup.discovery.look()
    gpu = setup.published[0].machine.gpus[0].uuid
    hang = setup.hardware.hang("compute_mode", gpu)
    step = asyncio.create_task(setup.workers.compute_mode(gpu))
    await setup.past_deadline(hang, GPU_DEADLINE_S)
    with pytest.raises(HardwareTimeoutError):
        await step
    await setup.discovery.look()
    assert setup.published[-1].unhealthy == {gpu: "a call hangs in the driver"}
    hang.release()
    async with asyncio.timeout(10):
        while setup.workers.hung_gpus:  # noqa: ASYNC110 - the thread ends in real time
            await asyncio.sleep(0.001)
    await setup.discovery.look()
    assert setup.published[-1] == setup.published[0]


async def test_of_two_looks_at_once_the_one_that_began_last_counts(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim has the GPUs looked at anew after it has switched a MIG mode, whatever look is on its way."""
    await setup.discovery.look()
    gpu, other = (gpu.uuid for gpu in setup.published[0].machine.gpus[:2])
    setup.held = (holding(other),)
    setup.hardware.lose(other)  # so that either look has something new to tell
    ask, asked, go_on = setup.workers.control_nodes, asyncio.Event(), asyncio.Event()

    async def slow() -> tuple[DeviceNode, ...]:
        asked.set()
        await go_on.wait()
        return await ask()

    with monkeypatch.context() as patch:
        patch.setattr(setup.workers, "control_nodes", slow)
        older = asyncio.create_task(setup.discovery.look())
        await asked.wait()
    setup.hardware.set_mig_mode(gpu, enabled=True)
    setup.hardware.reset(gpu)
    await setup.discovery.look()
    assert setup.published[-1].machine.gpus[0].mig_mode == "enabled"
    go_on.set()
    await older
    assert setup.discovery.inventory is setup.published[-1]
    assert setup.published[-1].machine.gpus[0].mig_mode == "enabled"


async def test_a_first_look_that_hangs_publishes_nothing(setup: Setup) -> None:
    hang = setup.hardware.hang("discover")
    await setup.look_past_deadlines(hang)
    assert setup.published == []
    assert "did not return" in setup.discovery.problem
    hang.release()


async def test_discovery_that_hangs_although_every_gpu_answers(setup: Setup) -> None:
    await setup.discovery.look()
    hang = setup.hardware.hang("discover")
    await setup.look_past_deadlines(hang)
    assert set(setup.published[-1].unhealthy) == {gpu.uuid for gpu in setup.published[0].machine.gpus}
    hang.release()


async def test_a_gpu_without_a_device_node_is_unhealthy(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = setup.hardware.device_nodes
    first = setup.hardware.discover().gpus[0]
    second = setup.hardware.discover().gpus[1]

    def device_nodes(gpu: object) -> object:
        if gpu == first:
            raise DriverUnavailableError("no character device /dev/nvidia0")
        return () if gpu == second else nodes(gpu)  # type: ignore[arg-type]

    monkeypatch.setattr(setup.hardware, "device_nodes", device_nodes)
    await setup.discovery.look()
    assert setup.published[0].unhealthy == {
        first.uuid: "no character device /dev/nvidia0",
        second.uuid: "the GPU has no device node",
    }
    assert len(setup.published[0].machine.gpus) == 8


async def test_without_the_drivers_files_nothing_is_published(setup: Setup) -> None:
    setup.edits_error = DriverUnavailableError("no libcuda.so.1 below /run/nvidia/driver")
    await setup.discovery.look()
    assert setup.published == []
    assert setup.discovery.problem == "no libcuda.so.1 below /run/nvidia/driver"


async def test_p33_foreign_instances_are_seen_at_the_next_look(setup: Setup) -> None:
    """An administrator cuts a GPU, and mends it: published and withdrawn, never touched."""
    first = setup.hardware.discover().gpus[0].uuid
    setup.hardware.set_mig_mode(first, enabled=True)
    setup.hardware.reset(first)
    await setup.discovery.look()
    assert setup.published[-1].foreign == {}
    number = setup.hardware.create_gpu_instance(first, profile_id=9, placement=MigPlacement(0, 4))
    made = setup.hardware.create_compute_instance(first, gpu_instance_id=number)
    await setup.discovery.look()
    (found,) = setup.published[-1].foreign[first]
    assert found.compute_instances == (made,)
    step = MigStep(device="d", uuid=first, profile_id=9, start=0, size=4)
    setup.held = (holding(first, step),)
    await setup.discovery.look()
    assert setup.published[-1].foreign == {}  # a claim has it noted: ours
    setup.held, setup.owed = (), (step,)
    await setup.discovery.look()
    assert setup.published[-1].foreign == {}  # and still so when that has ended while the GPU was away
    setup.owed = ()
    setup.hardware.destroy_compute_instance(first, gpu_instance_id=number, compute_instance_id=0)
    setup.hardware.destroy_gpu_instance(first, gpu_instance_id=number)
    await setup.discovery.look()
    assert setup.published[-1].foreign == {}


async def test_a_gpu_that_does_not_tell_its_instances_is_unhealthy(setup: Setup) -> None:
    first, second = (gpu.uuid for gpu in setup.hardware.discover().gpus[:2])
    for uuid in (first, second):
        setup.hardware.set_mig_mode(uuid, enabled=True)
        setup.hardware.reset(uuid)
    setup.hardware.fail(Fault(call="gpu_instances", error="UNKNOWN", target=first))
    await setup.discovery.look()
    assert set(setup.published[-1].unhealthy) == {first}
    await setup.discovery.look()
    assert setup.published[-1].unhealthy == {}


async def test_a_switch_that_failed_keeps_the_gpu_in_its_mode_for_a_while(setup: Setup) -> None:
    await setup.discovery.look()
    uuid = setup.published[-1].machine.gpus[0].uuid
    for pause_s in (60.0, 120.0):
        setup.discovery.veto(uuid)
        await setup.discovery.look()
        assert setup.published[-1].stuck == {uuid}
        await setup.clock.advance(pause_s * 1.5)
        await setup.discovery.look()
        assert setup.published[-1].stuck == frozenset()


async def test_a_switch_that_works_again_is_forgiven(setup: Setup) -> None:
    """The next one that fails is kept for the shortest time, and the GPU is offered in all its modes."""
    await setup.discovery.look()
    uuid = setup.published[-1].machine.gpus[0].uuid
    for _ in range(4):
        setup.discovery.veto(uuid)
    setup.hardware.set_mig_mode(uuid, enabled=True)
    setup.hardware.reset(uuid)
    await setup.discovery.look()
    assert setup.published[-1].stuck == frozenset()
    setup.discovery.veto(uuid)
    await setup.clock.advance(60.0 * 1.5)
    await setup.discovery.look()
    assert setup.published[-1].stuck == frozenset()
