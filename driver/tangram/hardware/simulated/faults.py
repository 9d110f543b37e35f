"""Carries out a plan of faults: counts the calls, and lets them fail or hang."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from tangram.base.errors import HardwareError
from tangram.hardware.machines.faultplan import Call, Fault
from tangram.hardware.refusals import NvmlCode, action_error
from tangram.model.gpu import GpuUuid


@dataclass(frozen=True, slots=True)
class Hang:
    """Calls of one kind that do not return until `release`. `entered` is set once a call is stuck."""

    entered: threading.Event = field(default_factory=threading.Event)
    _released: threading.Event = field(default_factory=threading.Event)

    @property
    def released(self) -> bool:
        """Whether calls return again."""
        return self._released.is_set()

    def release(self) -> None:
        """Lets the stuck calls, and all later ones, return."""
        self._released.set()

    def wait(self) -> None:
        """Called by the stuck call."""
        self.entered.set()
        self._released.wait()


@dataclass(slots=True)
class _Planned:
    fault: Fault
    seen: int = 0
    hang: Hang = field(default_factory=Hang)

    def strikes(self) -> bool:
        """Counts one more call."""
        self.seen += 1
        nth = self.seen - self.fault.after
        return nth > 0 and (self.fault.times == "always" or nth <= self.fault.times)


class Faults:
    """The faults in force. A fault's calls are counted from when it is planned. `kill` ends the process, or
    returns where that has been done."""

    def __init__(self, kill: Callable[[Fault], None]) -> None:
        self._kill = kill
        self._lock = threading.Lock()
        self._planned: list[_Planned] = []
        self._hangs: dict[tuple[Call, GpuUuid | None], Hang] = {}

    def plan(self, faults: Iterable[Fault]) -> None:
        """Replaces the plan; faults that stay keep their counts, calls that a dropped one hangs return."""
        with self._lock:
            left = list(self._planned)
            self._planned = []
            for fault in faults:
                known = next((planned for planned in left if planned.fault == fault), None)
                if known is not None:
                    left.remove(known)
                self._planned.append(known or _Planned(fault))
        for dropped in left:
            dropped.hang.release()

    def add(self, fault: Fault) -> None:
        """Plans one fault more."""
        with self._lock:
            self._planned.append(_Planned(fault))

    def hang(self, call: Call, uuid: GpuUuid | None) -> Hang:
        """Calls of this kind (of this GPU) do not return until the Hang is released."""
        hang = Hang()
        with self._lock:
            self._hangs[call, uuid] = hang
        return hang

    def hangs(self, call: Call, uuid: GpuUuid) -> bool:
        """Whether a call of this kind would not return now, because of `hang`."""
        with self._lock:
            hang = self._hangs.get((call, uuid)) or self._hangs.get((call, None))
        return hang is not None and not hang.released

    def before(
        self, call: Call, uuid: GpuUuid | None, bus_id: str | None
    ) -> Callable[[], HardwareError | None]:
        """Hangs, raises, ends the process, or returns what is to be done after the call's work: that may end
        the process too, or return what to raise."""
        with self._lock:
            hang = self._hangs.get((call, uuid)) or self._hangs.get((call, None))
            striking = [planned for planned in self._planned if _concerns(planned.fault, call, uuid, bus_id)]
            striking = [planned for planned in striking if planned.strikes()]
        if hang is not None:
            hang.wait()
        later: Callable[[], HardwareError | None] = _nothing
        for planned in striking:
            if planned.fault.error == "HANG":
                planned.hang.wait()
                continue
            strike = partial(self._strike, planned.fault, call, uuid)
            if planned.fault.effect:
                later = strike
            elif (error := strike()) is not None:
                raise error
        return later

    def _strike(self, fault: Fault, call: Call, uuid: GpuUuid | None) -> HardwareError | None:
        if fault.error == "KILL":
            self._kill(fault)
            return None
        return action_error(NvmlCode[fault.error], label=uuid or "system", action=f"planned fault of {call}")


def _nothing() -> None:
    """What is to be done after a call without a fault."""


def _concerns(fault: Fault, call: Call, uuid: GpuUuid | None, bus_id: str | None) -> bool:
    if fault.target is not None and fault.target not in (uuid, bus_id):
        return False
    return fault.call == call or (fault.call == "*" and uuid is not None)
