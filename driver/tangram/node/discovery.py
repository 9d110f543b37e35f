"""Keeping the inventory true: looks at the GPUs at start and again and again.

A look that fails never empties the inventory: before the first good one nothing is known and nothing
published; after it the GPUs stay as last seen, unhealthy while the driver is away.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from tangram.base.backoff import Backoff
from tangram.base.clock import Clock
from tangram.base.errors import HardwareError, HardwareTimeoutError, TangramError
from tangram.base.logs import get_logger
from tangram.hardware.backend import DeviceNode
from tangram.hardware.cdi import CdiEdits
from tangram.hardware.health import XidEvent
from tangram.hardware.workers import Workers
from tangram.model.gpu import Gpu, GpuUuid, Machine
from tangram.model.mig import GpuInstance
from tangram.node.health import HealthBook
from tangram.node.held import HeldClaim, MigStep
from tangram.node.inventory import Inventory, Policy, merge, without_driver
from tangram.node.metrics import DISCOVERY_FAILURES
from tangram.node.steps.mig import foreign_instances

_log = get_logger("node")

_VETO_S = 60.0
_LONGEST_VETO_S = 3600.0


class Discovery:
    """The inventory of this node, kept.

    `held` (blocking) gives what claims hold, `owed` (blocking) the MIG instances that ended ones have left,
    `driver_edits` (blocking) what containers get of the GPU driver, `drained` which GPUs are drained and
    `mps_failing` whose MPS daemon serves nobody, in words; `changed` is called with each new inventory.
    """

    def __init__(
        self,
        *,
        workers: Workers,
        held: Callable[[], Collection[HeldClaim]],
        driver_edits: Callable[[], CdiEdits],
        changed: Callable[[Inventory], None],
        clock: Clock,
        rescan_interval_s: float,
        policy: Policy | None = None,
        drained: Callable[[], Mapping[GpuUuid, str]] = dict,
        owed: Callable[[], Collection[MigStep]] = tuple,
        mps_failing: Callable[[], Mapping[GpuUuid, str]] = dict,
    ) -> None:
        self._workers = workers
        self._held = held
        self._owed = owed
        self._driver_edits = driver_edits
        self._drained = drained
        self._mps_failing = mps_failing
        self._changed = changed
        self._clock = clock
        self._rescan_interval_s = rescan_interval_s
        self._policy = policy or Policy()
        self._backoff = Backoff(maximum_s=rescan_interval_s)
        self._health = HealthBook(workers)
        self._vetoes: dict[GpuUuid, tuple[Backoff, float]] = {}
        self._begun = self._latest = 0
        self.inventory: Inventory | None = None
        self.problem = "the first look at the GPUs"
        """Why the GPUs are not known now; empty after a good look."""
        self.looked = asyncio.Event()
        """Set after the first look, good or not."""

    async def look(self) -> None:
        """One look. Raises nothing: what fails is in `problem`, in the log and in the inventory.

        Of looks at the same time the one that began last counts: MIG modes are switched in between.
        """
        self._begun += 1
        number = self._begun
        found: Inventory | TangramError
        try:
            found = await self._look(self.inventory)
        except TangramError as error:
            found = error
        if number > self._latest:
            self._latest = number
            self._conclude(found)

    def _conclude(self, found: Inventory | TangramError) -> None:
        before = self.inventory
        now: Inventory | None = None
        if isinstance(found, TangramError):
            error = found
            DISCOVERY_FAILURES.labels(type(error).__name__).inc()
            if self.problem != error.cause:
                _log.error("gpus_not_found", error=error.cause, next_step=error.next_step)
            self.problem = error.cause
            if before is not None:
                now = without_driver(before, error.cause)
        else:
            now = found
            self.problem = ""
            self._backoff.reset()
        if now is not None:
            self._become(now)

    def told_otherwise(self) -> None:
        """`drained` or `mps_failing` say something else: told at once, not at the next look."""
        if self.inventory is not None:
            self._become(self.inventory)

    def _become(self, found: Inventory) -> None:
        before = self.inventory
        now = replace(
            found,
            drained=self._of(found, self._drained()),
            mps_failing=self._of(found, self._mps_failing()),
        )
        if now != before:
            _log_changes(before, now)
            self.inventory = now
            self._changed(now)

    def heard(self, event: XidEvent) -> None:
        """A GPU has reported an error: told at once, not at the next look."""
        self._health.note(event)
        before = self.inventory
        if before is None:
            return
        ill = self._of(before, self._health.unhealthy())
        warnings = self._of(before, self._health.warnings())
        self._become(replace(before, unhealthy={**ill, **before.unhealthy}, warnings=warnings))

    @staticmethod
    def _of(inventory: Inventory, texts: Mapping[GpuUuid, str]) -> dict[GpuUuid, str]:
        """Those of GPUs that are in the inventory."""
        return {gpu.uuid: texts[gpu.uuid] for gpu in inventory.machine.gpus if gpu.uuid in texts}

    def veto(self, uuid: GpuUuid) -> None:
        """The MIG mode of a GPU could not be switched: it is offered in the one it is in for a
        while, longer each time, until that is seen to have changed."""
        backoff, _ = self._vetoes.get(uuid, (Backoff(initial_s=_VETO_S, maximum_s=_LONGEST_VETO_S), 0.0))
        self._vetoes[uuid] = (backoff, self._clock.monotonic_s() + backoff.next_s())

    def _forgive(self, before: Inventory | None, machine: Machine) -> None:
        modes = {gpu.uuid: gpu.mig_mode for gpu in before.machine.gpus} if before else {}
        for gpu in machine.gpus:
            if modes.get(gpu.uuid, gpu.mig_mode) != gpu.mig_mode:
                self._vetoes.pop(gpu.uuid, None)

    def _stuck(self) -> frozenset[GpuUuid]:
        now_s = self._clock.monotonic_s()
        return frozenset(uuid for uuid, (_, until_s) in self._vetoes.items() if until_s > now_s)

    async def run(self) -> None:
        """Looks until cancelled: again after the interval, sooner while the driver does not answer."""
        while True:
            await self.look()
            self.looked.set()
            await self._clock.sleep(self._backoff.next_s() if self.problem else self._rescan_interval_s)

    async def _look(self, before: Inventory | None) -> Inventory:
        claims, owed = await asyncio.to_thread(lambda: (self._held(), self._owed()))
        held = frozenset(uuid for claim in claims for uuid in claim.gpus)
        try:
            await self._workers.open()
            machine = await self._workers.discover()
        except HardwareTimeoutError as error:
            if before is None:
                raise
            # One GPU that hangs must not cost the others: ask each of them alone.
            failing = await self._probe(before.machine.gpus)
            if not failing:
                raise HardwareError(error.cause, next_step=error.next_step) from error
            return replace(before, unhealthy={**self._ill(before), **failing})
        foreign, silent = await self._foreign(machine, claims, owed)
        inventory = merge(before, machine, held=held, policy=self._policy, foreign=foreign)
        nodes, failing = await self._device_nodes(machine)
        control_nodes = await self._workers.control_nodes()
        driver_edits = await asyncio.to_thread(self._driver_edits)
        await self._health.look(machine)
        self._forgive(before, machine)
        # Without a pause from here on: an event that comes now would be missed.
        return replace(
            inventory,
            unhealthy={
                **self._ill(inventory),
                **inventory.unhealthy,
                **silent,
                **failing,
            },
            warnings=self._of(inventory, self._health.warnings()),
            nodes={**inventory.nodes, **nodes},
            stuck=self._stuck(),
            control_nodes=control_nodes,
            driver_edits=driver_edits,
        )

    def _ill(self, inventory: Inventory) -> dict[GpuUuid, str]:
        """Why GPUs must not be used: by their health, or with a call, such as a step of a claim, that has not
        returned: they may answer a look."""
        hanging = dict.fromkeys(self._workers.hung_gpus, "a call hangs in the driver")
        return self._of(inventory, {**self._health.unhealthy(), **hanging})

    async def _probe(self, gpus: Iterable[Gpu]) -> dict[GpuUuid, str]:
        """The GPUs that do not answer, with the cause."""

        async def probe(gpu: Gpu) -> tuple[GpuUuid, str]:
            try:
                await self._workers.probe(gpu.uuid)
            except HardwareError as error:
                return gpu.uuid, error.cause
            return gpu.uuid, ""

        answers = await asyncio.gather(*(probe(gpu) for gpu in gpus))
        return {uuid: cause for uuid, cause in answers if cause}

    async def _foreign(
        self, machine: Machine, claims: Collection[HeldClaim], owed: Collection[MigStep]
    ) -> tuple[dict[GpuUuid, tuple[GpuInstance, ...]], dict[GpuUuid, str]]:
        """The MIG instances that no claim has made, by GPU, and the GPUs that do not tell, with the cause.

        `claims` are those before the look, `owed` the instances that ended ones had left: what one of them,
        or one that came meanwhile, has made is not foreign.
        """
        gpus = [gpu for gpu in machine.gpus if gpu.mig_mode == "enabled"]
        answers = await asyncio.gather(
            *(self._workers.gpu_instances(gpu.uuid) for gpu in gpus), return_exceptions=True
        )
        known = [*claims, *await asyncio.to_thread(self._held)] if gpus else []
        left = [*owed, *await asyncio.to_thread(self._owed)] if gpus else []
        foreign: dict[GpuUuid, tuple[GpuInstance, ...]] = {}
        failing: dict[GpuUuid, str] = {}
        for gpu, answer in zip(gpus, answers, strict=True):
            if isinstance(answer, HardwareError):
                failing[gpu.uuid] = answer.cause
            elif isinstance(answer, BaseException):
                raise answer
            elif found := foreign_instances(answer, uuid=gpu.uuid, claims=known, owed=left):
                foreign[gpu.uuid] = found
        return foreign, failing

    async def _device_nodes(
        self, machine: Machine
    ) -> tuple[dict[GpuUuid, tuple[DeviceNode, ...]], dict[GpuUuid, str]]:
        """The device nodes of each GPU, and the GPUs that have none, with the cause."""
        answers = await asyncio.gather(
            *(self._workers.device_nodes(gpu) for gpu in machine.gpus), return_exceptions=True
        )
        nodes: dict[GpuUuid, tuple[DeviceNode, ...]] = {}
        failing: dict[GpuUuid, str] = {}
        for gpu, answer in zip(machine.gpus, answers, strict=True):
            if isinstance(answer, HardwareError):
                failing[gpu.uuid] = answer.cause
            elif isinstance(answer, BaseException):
                raise answer
            elif answer:
                nodes[gpu.uuid] = answer
            else:
                failing[gpu.uuid] = "the GPU has no device node"
        return nodes, failing


def _log_changes(before: Inventory | None, now: Inventory) -> None:
    old = {gpu.uuid for gpu in before.machine.gpus} if before else set()
    new = {gpu.uuid for gpu in now.machine.gpus}
    _log.info(
        "gpus_changed",
        gpus=len(new),
        added=sorted(new - old),
        removed=sorted(old - new),
        unhealthy=dict(now.unhealthy),
        drained=dict(now.drained),
        mps_failing=dict(now.mps_failing),
        not_answering=now.machine.failures,
        foreign_mig_instances={uuid: len(instances) for uuid, instances in now.foreign.items()},
        driver_version=now.machine.driver_version,
    )
