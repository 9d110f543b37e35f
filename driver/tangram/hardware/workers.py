"""The blocking back end behind asyncio: one thread per GPU, one for system calls, a deadline on every call.

A driver that hangs must not stop the process: the thread of a call that outlives its deadline is abandoned (a
thread cannot be killed), its GPU counts as unhealthy until the call returns after all, and later calls get a
fresh thread, up to a bound. All threads are daemons, so that none keeps the process from ending.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Collection
from typing import Generic, NamedTuple, TypeVar

from tangram.base.clock import Clock
from tangram.base.errors import HardwareError, HardwareTimeoutError
from tangram.base.logs import get_logger
from tangram.hardware.backend import Backend, ComputeMode, DeviceNode, GpuProcess, MigModes
from tangram.hardware.health import GpuConditions, XidEvent
from tangram.model.gpu import Gpu, GpuUuid, Machine
from tangram.model.mig import ComputeInstance, GpuInstance, MigPlacement

T = TypeVar("T")

GPU_DEADLINE_S = 10.0
"""Well below the 45 s that kubelet grants a Prepare."""
SYSTEM_DEADLINE_S = 30.0
"""Without persistence mode the driver takes seconds per GPU to wake it up for the first look."""
MIG_DEADLINE_S = 20.0
"""Instances come and go in about a second; on a busy node it was seen to take many."""
MIG_MODE_DEADLINE_S = 30.0
"""A switch of the MIG mode takes 5 to 10 s on a GPU that is well."""
MAXIMUM_ABANDONED = 2
"""Hung threads that one GPU (or the system) may cost before its calls are refused at once."""
_SYSTEM = "system"
_FILES = "files"
_EVENTS = "events"
_NO_GPU = frozenset({_SYSTEM, _FILES, _EVENTS})
_NEXT_STEP = "look at the kernel log for the GPU driver; the node may need a reboot"

_log = get_logger("hardware")


class Workers:
    """The calls of a `Backend`, awaited. Each raises what the back end raises, and HardwareTimeoutError.

    Calls on one GPU run one after another, those on different GPUs at the same time. A call that waits for
    the one before it waits within its own deadline. Device nodes are looked up in a thread of their own: no
    Prepare waits for a discovery.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        clock: Clock,
        gpu_deadline_s: float = GPU_DEADLINE_S,
        system_deadline_s: float = SYSTEM_DEADLINE_S,
        maximum_abandoned: int = MAXIMUM_ABANDONED,
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._gpu_deadline_s = gpu_deadline_s
        self._system_deadline_s = system_deadline_s
        self._maximum_abandoned = maximum_abandoned
        self._threads: dict[str, _Thread] = {}
        self._hung: dict[str, list[_Thread]] = {}
        self._closed = False

    @property
    def backend_name(self) -> str:
        """`nvml` or `simulated`."""
        return self._backend.name

    @property
    def hung_gpus(self) -> frozenset[GpuUuid]:
        """GPUs with a call that outlived its deadline and has not returned yet: unhealthy."""
        self._forget_returned()
        return frozenset(GpuUuid(lane) for lane in self._hung if lane not in _NO_GPU)

    @property
    def system_hung(self) -> bool:
        """True if a call for no GPU in particular outlived its deadline and has not returned yet."""
        self._forget_returned()
        return _SYSTEM in self._hung or _FILES in self._hung

    async def open(self) -> None:
        """Connects to the driver (`Backend.open`)."""
        await self._run(_SYSTEM, "open", self._backend.open)

    async def discover(self) -> Machine:
        """All GPUs that answer (`Backend.discover`)."""
        return await self._run(_SYSTEM, "discover", self._backend.discover)

    async def probe(self, uuid: GpuUuid) -> None:
        """Returns if the GPU answers now (`Backend.probe`)."""
        await self._run(uuid, "probe", lambda: self._backend.probe(uuid))

    async def device_nodes(self, gpu: Gpu) -> tuple[DeviceNode, ...]:
        """The nodes of this GPU alone (`Backend.device_nodes`)."""
        return await self._run(_FILES, "device_nodes", lambda: self._backend.device_nodes(gpu))

    async def control_nodes(self) -> tuple[DeviceNode, ...]:
        """The nodes every container with a GPU needs (`Backend.control_nodes`)."""
        return await self._run(_FILES, "control_nodes", self._backend.control_nodes)

    async def mig_nodes(
        self, gpu: Gpu, *, gpu_instance_id: int, compute_instance_id: int
    ) -> tuple[DeviceNode, ...]:
        """The capability nodes of a compute instance (`Backend.mig_nodes`)."""
        return await self._run(
            _FILES,
            "mig_nodes",
            lambda: self._backend.mig_nodes(
                gpu, gpu_instance_id=gpu_instance_id, compute_instance_id=compute_instance_id
            ),
        )

    async def mig_modes(self, uuid: GpuUuid) -> MigModes:
        """The MIG mode now and after the next reset (`Backend.mig_modes`)."""
        return await self._run(uuid, "mig_modes", lambda: self._backend.mig_modes(uuid))

    async def set_mig_mode(self, uuid: GpuUuid, *, enabled: bool) -> MigModes:
        """Switches the MIG mode and reads it back (`Backend.set_mig_mode`)."""
        return await self._run(
            uuid,
            "set_mig_mode",
            lambda: self._backend.set_mig_mode(uuid, enabled=enabled),
            deadline_s=MIG_MODE_DEADLINE_S,
        )

    async def gpu_instances(self, uuid: GpuUuid) -> tuple[GpuInstance, ...]:
        """All instances on the GPU now (`Backend.gpu_instances`)."""
        return await self._run(uuid, "gpu_instances", lambda: self._backend.gpu_instances(uuid))

    async def create_gpu_instance(self, uuid: GpuUuid, *, profile_id: int, placement: MigPlacement) -> int:
        """Creates an instance at that place; its id (`Backend.create_gpu_instance`)."""
        return await self._run(
            uuid,
            "create_gpu_instance",
            lambda: self._backend.create_gpu_instance(uuid, profile_id=profile_id, placement=placement),
            deadline_s=MIG_DEADLINE_S,
        )

    async def create_compute_instance(self, uuid: GpuUuid, *, gpu_instance_id: int) -> ComputeInstance:
        """Creates the one compute instance of a GPU instance (`Backend.create_compute_instance`)."""
        return await self._run(
            uuid,
            "create_compute_instance",
            lambda: self._backend.create_compute_instance(uuid, gpu_instance_id=gpu_instance_id),
            deadline_s=MIG_DEADLINE_S,
        )

    async def destroy_compute_instance(
        self, uuid: GpuUuid, *, gpu_instance_id: int, compute_instance_id: int
    ) -> None:
        """Destroys a compute instance (`Backend.destroy_compute_instance`)."""
        await self._run(
            uuid,
            "destroy_compute_instance",
            lambda: self._backend.destroy_compute_instance(
                uuid, gpu_instance_id=gpu_instance_id, compute_instance_id=compute_instance_id
            ),
            deadline_s=MIG_DEADLINE_S,
        )

    async def destroy_gpu_instance(self, uuid: GpuUuid, *, gpu_instance_id: int) -> None:
        """Destroys a GPU instance (`Backend.destroy_gpu_instance`)."""
        await self._run(
            uuid,
            "destroy_gpu_instance",
            lambda: self._backend.destroy_gpu_instance(uuid, gpu_instance_id=gpu_instance_id),
            deadline_s=MIG_DEADLINE_S,
        )

    async def compute_mode(self, uuid: GpuUuid) -> ComputeMode:
        """The GPU's compute mode (`Backend.compute_mode`)."""
        return await self._run(uuid, "compute_mode", lambda: self._backend.compute_mode(uuid))

    async def set_compute_mode(self, uuid: GpuUuid, mode: ComputeMode) -> None:
        """Sets the compute mode (`Backend.set_compute_mode`)."""
        await self._run(uuid, "set_compute_mode", lambda: self._backend.set_compute_mode(uuid, mode))

    async def processes(self, uuid: GpuUuid) -> tuple[GpuProcess, ...]:
        """Who computes on the GPU now (`Backend.processes`)."""
        return await self._run(uuid, "processes", lambda: self._backend.processes(uuid))

    async def used_memory_bytes(self, uuid: GpuUuid) -> int | None:
        """Memory in use on the GPU (`Backend.used_memory_bytes`)."""
        return await self._run(uuid, "used_memory_bytes", lambda: self._backend.used_memory_bytes(uuid))

    async def health(self, uuid: GpuUuid) -> GpuConditions:
        """How well the GPU says it is (`Backend.health`)."""
        return await self._run(uuid, "health", lambda: self._backend.health(uuid))

    async def watch(self, uuids: Collection[GpuUuid]) -> frozenset[GpuUuid]:
        """Begins to listen for XID errors; the GPUs that tell none (`Backend.watch`)."""
        return await self._run(_EVENTS, "watch", lambda: self._backend.watch(uuids))

    async def next_event(self, *, timeout_s: float) -> XidEvent | None:
        """The next XID error (`Backend.next_event`)."""
        return await self._run(
            _EVENTS,
            "next_event",
            lambda: self._backend.next_event(timeout_s=timeout_s),
            deadline_s=timeout_s + self._gpu_deadline_s,
        )

    async def close(self) -> None:
        """Lets go of the driver and ends the threads; never raises, and waits for no call that hangs."""
        if self._closed:
            return
        try:
            if _SYSTEM not in self._hung:
                await self._run(_SYSTEM, "close", self._backend.close)
        except HardwareError as error:
            _log.warning("hardware_close_failed", cause=error.cause)
        finally:
            self._closed = True
            for thread in self._threads.values():
                thread.end()
            self._threads.clear()

    async def _run(
        self, lane: str, call: str, function: Callable[[], T], *, deadline_s: float | None = None
    ) -> T:
        thread = self._thread(lane, call)
        outcome = thread.submit(function)
        if deadline_s is None:
            deadline_s = self._system_deadline_s if lane == _SYSTEM else self._gpu_deadline_s
        deadline = asyncio.ensure_future(self._clock.sleep(deadline_s))
        try:
            await asyncio.wait((outcome, deadline), return_when=asyncio.FIRST_COMPLETED)
            if not outcome.done():
                self._abandon(lane, thread, call)
                raise HardwareTimeoutError(
                    f"{lane}: {call} did not return within {deadline_s:g} s", next_step=_NEXT_STEP
                )
        finally:
            deadline.cancel()
            outcome.cancel()
        return outcome.result().unwrap(lane, call)

    def _thread(self, lane: str, call: str) -> "_Thread":
        if self._closed:
            raise HardwareError(f"{lane}: {call} after the hardware was closed")
        self._forget_returned()
        thread = self._threads.get(lane)
        if thread is None:
            if len(self._hung.get(lane, ())) >= self._maximum_abandoned:
                raise HardwareTimeoutError(
                    f"{lane}: {call} refused, {self._maximum_abandoned} calls hang already",
                    next_step=_NEXT_STEP,
                )
            thread = self._threads[lane] = _Thread(lane)
        return thread

    def _abandon(self, lane: str, thread: "_Thread", call: str) -> None:
        if self._threads.get(lane) is not thread:
            return  # a call before this one on the same thread has abandoned it already
        del self._threads[lane]
        hung = self._hung.setdefault(lane, [])
        hung.append(thread)
        thread.end()
        _log.error("hardware_call_hung", lane=lane, call=call, abandoned_threads=len(hung))

    def _forget_returned(self) -> None:
        for lane, threads in list(self._hung.items()):
            threads[:] = [thread for thread in threads if thread.alive]
            if not threads:
                del self._hung[lane]
                _log.info("hardware_call_returned_late", lane=lane)


class _Outcome(NamedTuple, Generic[T]):
    """What a call returned or raised."""

    value: T | None
    error: BaseException | None

    def unwrap(self, lane: str, call: str) -> T:
        if self.error is None:
            return self.value  # type: ignore[return-value]  # T may include None
        if isinstance(self.error, HardwareError):
            raise self.error
        _log.error("hardware_call_failed", lane=lane, call=call, exc_info=self.error)
        raise HardwareError(
            f"{lane}: {call} failed unexpectedly: {self.error!r}", next_step="report this as a bug"
        ) from self.error


class _Thread:
    """A daemon thread that runs what it is given, one after another, until told to end."""

    def __init__(self, lane: str) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"hardware-{lane}", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, function: Callable[[], T]) -> "asyncio.Future[_Outcome[T]]":
        """Runs the function; the future gets its outcome. A future cancelled before is not run."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Outcome[T]] = loop.create_future()

        def deliver(outcome: _Outcome[T]) -> None:
            if not future.done():
                future.set_result(outcome)

        def task() -> None:
            if future.cancelled():
                return
            outcome: _Outcome[T]
            try:
                outcome = _Outcome(function(), None)
            except BaseException as error:  # noqa: BLE001 - whoever waits gets it, whatever it is
                outcome = _Outcome(None, error)
            try:
                loop.call_soon_threadsafe(deliver, outcome)
            except RuntimeError:
                return  # the loop has ended: nobody waits any more

        self._tasks.put(task)
        return future

    def end(self) -> None:
        """Ends the thread after the tasks it has; does not wait."""
        self._tasks.put(None)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
