"""Best fit: which of the solutions on one node takes the least away from what may come.

For our own GPUs the terms are linked sets, small GPUs before big ones,
bandwidth, the usefulness of the rest. For devices of any driver: few pools and counter sets opened, small
devices and full shared ones first.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from tangram import DRIVER_NAME
from tangram.allocation.structured.candidates import Taken, Taker
from tangram.allocation.structured.cluster import Device
from tangram.allocation.structured.links import gpus_of, is_gpu
from tangram.allocation.structured.parameters import works
from tangram.allocation.structured.score import Score
from tangram.allocation.structured.search import Solution
from tangram.model.product import nominal_gigabytes


class _Part(NamedTuple):
    """What a device is a part of, as bits: its pool; the counter sets it draws on, where a shared device is
    one of its own; and the hardware, with the nominal memory of all of that."""

    pool: int
    sets: int
    unit: int
    unit_gb: int
    weight: int


class BestFit:
    """Judges solutions on one view, from one state."""

    def __init__(self, taker: Taker) -> None:
        self._taker = taker
        view = taker.view
        devices = [view.device(position) for position in range(len(view.places))]
        self._parts = self._parts_of(devices)
        self._used_pools = self._used_sets = self._used_units = 0
        for position, part in enumerate(self._parts):
            if self._in_use(position):
                self._used_pools |= part.pool
                self._used_sets |= part.sets
                self._used_units |= part.unit
        free = [
            not part.unit & self._used_units and works(device)
            for part, device in zip(self._parts, devices, strict=True)
        ]
        self._free_units = 0
        for part, is_free in zip(self._parts, free, strict=True):
            self._free_units |= part.unit if is_free else 0
        self._gpus = gpus_of(view)
        self._free_gpus = [
            sum(1 << bit for bit, position in enumerate(gpus.positions) if free[position])
            for gpus in self._gpus
        ]
        self._bits = {
            position: (number, bit)
            for number, gpus in enumerate(self._gpus)
            for bit, position in enumerate(gpus.positions)
        }

    def _parts_of(self, devices: Sequence[Device]) -> list[_Part]:
        pools, sets, units = _Bits(), _Bits(), _Bits()
        sizes: dict[int, int] = {}
        found = []
        for position, device in enumerate(devices):
            place = self._taker.view.places[position]
            drawn: tuple[Hashable, ...] = ()
            if device.consumes:
                account = self._taker.ledger.account_key(place)
                drawn = tuple([(account, consumption.counter_set) for consumption in device.consumes])
            # Devices that draw on the same counters are parts of one piece of hardware.
            unit = units.of(drawn or position)
            sizes[unit] = max(_gigabytes(device), sizes.get(unit, 0))
            mask = sets.of(position) if self._taker.multiple(position) else 0
            for key in drawn:
                mask |= sets.of(key)
            found.append((pools.of(place.pool.id), mask, unit))
        return [
            _Part(pool, mask, unit, sizes[unit], weight)
            for (pool, mask, unit), weight in zip(found, _weights(devices), strict=True)
        ]

    def _in_use(self, position: int) -> bool:
        """True if anybody has the device, or a share of it."""
        ledger = self._taker.ledger
        return bool(ledger.held >> position & 1) or ledger.consumed(position) is not None

    def order(self) -> list[int]:
        """Positions, those that a good solution probably has first."""
        return sorted(range(len(self._parts)), key=self._preference)

    def _preference(self, position: int) -> tuple[bool, bool, int, int, int]:
        part = self._parts[position]
        return (
            not part.pool & self._used_pools,
            bool(part.sets & ~self._used_sets),
            part.unit_gb,
            part.weight,
            position,
        )

    def signature(self) -> list[Hashable]:
        """Equal for positions that may be exchanged without a change of score."""
        return [self._signature(position, part) for position, part in enumerate(self._parts)]

    def _signature(self, position: int, part: _Part) -> Hashable:
        if position in self._bits:
            number, bit = self._bits[position]
            return (part.pool, part.unit_gb, self._gpus[number].topology.twins[bit])
        return (part.pool, part.unit_gb, bool(part.unit & self._used_units), part.weight)

    def score(self, solution: Solution) -> Score:
        """How good a solution is. Its devices must be taken."""
        masks = [0] * len(self._gpus)
        sets: dict[tuple[int, int], int] = {}
        pools = opened = units = 0
        left = size = spared_gb = 0
        for taken in solution.taken:
            if taken.alternative.admin:
                continue
            position = taken.position
            part = self._parts[position]
            if not part.unit & (units | self._used_units):
                spared_gb -= part.unit_gb
            pools |= part.pool
            opened |= part.sets
            units |= part.unit
            left -= self._left(taken)
            size -= part.weight
            if position in self._bits:
                number, bit = self._bits[position]
                masks[number] |= 1 << bit
                key = (taken.alternative.index, number)
                sets[key] = sets.get(key, 0) | 1 << bit
        several = [
            (self._gpus[number].topology, mask) for (_, number), mask in sets.items() if mask & mask - 1
        ]
        used = [
            (gpus.topology, mask) for gpus, mask in zip(self._gpus, masks, strict=True) if mask & mask - 1
        ]
        return Score(
            chosen=tuple([-alternative for alternative in solution.chosen]),
            linked=all(topology.fully_linked(mask) for topology, mask in several),
            spared_gb=spared_gb,
            set_links=min((topology.ring_links(mask) for topology, mask in several), default=0),
            ring_links=min((topology.ring_links(mask) for topology, mask in used), default=0),
            opened=-(opened & ~self._used_sets).bit_count(),
            left=left,
            size=size,
            fullness=-(self._free_units & ~units).bit_count(),
            pools=-(pools & ~self._used_pools).bit_count(),
            rest=tuple(
                gpus.topology.rest(free & ~mask)
                for gpus, free, mask in zip(self._gpus, self._free_gpus, masks, strict=True)
            ),
        )

    def _left(self, taken: Taken) -> int:
        """What stays free of a shared device, summed over its capacities, in thousandths."""
        if taken.share is None:
            return 0
        device = self._taker.view.device(taken.position)
        consumed = self._taker.ledger.consumed(taken.position) or {}
        return sum(
            1000 - 1000 * consumed.get(name, 0) // capacity.value.nano
            for name, capacity in device.capacity.items()
            if capacity.value.nano > 0
        )


class _Bits:
    """A bit for each key, in order of first use."""

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}

    def of(self, key: Hashable) -> int:
        return self._known.setdefault(key, 1 << len(self._known))


def _gigabytes(device: Device) -> int:
    """Nominal memory of the GPU that a device of our driver is, or is a part of; 0 for others."""
    if device.id.driver != DRIVER_NAME:
        return 0
    own = device.cel.attributes.get(DRIVER_NAME, {})
    memory = device.cel.capacity.get(DRIVER_NAME, {}).get("memory")
    return nominal_gigabytes(str(own.get("productName", "")), int(memory) if memory is not None else None)


def _weights(devices: Sequence[Device]) -> list[int]:
    """How big each device is: its capacities, in units of the smallest of each that is published."""
    smallest: dict[tuple[str, str], int] = {}
    for device in devices:
        for name, capacity in device.capacity.items():
            key = (device.id.driver, name)
            if capacity.value.nano > 0:
                smallest[key] = min(smallest.get(key, capacity.value.nano), capacity.value.nano)
    return [
        0  # whole GPUs are told apart by `spared_gb`
        if is_gpu(device)
        else sum(
            capacity.value.nano // smallest[device.id.driver, name]
            for name, capacity in device.capacity.items()
            if capacity.value.nano > 0
        )
        for device in devices
    ]
