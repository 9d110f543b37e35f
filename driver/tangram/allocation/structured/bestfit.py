"""Best fit: which of the solutions on one node takes the least away from what may come.

For our own GPUs the terms are linked sets, small GPUs before big ones,
bandwidth, the usefulness of the rest. For devices of any driver: few pools and counter sets opened, small
devices and full shared ones first.
"""

from collections.abc import Hashable, Sequence

from tangram import DRIVER_NAME
from tangram.allocation.structured.candidates import Taken, Taker
from tangram.allocation.structured.cluster import Device, PoolId
from tangram.allocation.structured.links import gpus_of, is_gpu
from tangram.allocation.structured.parameters import works
from tangram.allocation.structured.score import Score
from tangram.allocation.structured.search import Solution
from tangram.model.product import nominal_gigabytes


class BestFit:
    """Judges solutions on one view, from one state."""

    def __init__(self, taker: Taker) -> None:
        self._taker = taker
        view = taker.view
        self._used_pools: set[PoolId] = set()
        self._used_sets: set[Hashable] = set()
        for position, place in enumerate(view.places):
            if self._in_use(position):
                self._used_pools.add(place.pool.id)
                self._used_sets |= set(self._sets(position))
        self._units = [self._unit(position) for position in range(len(view.places))]
        self._used_units = {unit for position, unit in enumerate(self._units) if self._in_use(position)}
        self._unit_sizes: dict[Hashable, int] = {}
        for position, unit in enumerate(self._units):
            size = _gigabytes(view.device(position))
            self._unit_sizes[unit] = max(size, self._unit_sizes.get(unit, 0))
        self._free = [
            unit not in self._used_units and works(view.device(position))
            for position, unit in enumerate(self._units)
        ]
        self._free_units = {unit for free, unit in zip(self._free, self._units, strict=True) if free}
        self._gpus = gpus_of(view)
        self._free_gpus = [
            sum(1 << bit for bit, position in enumerate(gpus.positions) if self._free[position])
            for gpus in self._gpus
        ]
        self._bits = {
            position: (number, bit)
            for number, gpus in enumerate(self._gpus)
            for bit, position in enumerate(gpus.positions)
        }
        self._weights = _weights([view.device(position) for position in range(len(view.places))])

    def _in_use(self, position: int) -> bool:
        """True if anybody has the device, or a share of it."""
        ledger = self._taker.ledger
        return bool(ledger.held >> position & 1) or ledger.consumed(position) is not None

    def _sets(self, position: int) -> list[Hashable]:
        """The counter sets a device draws on; a shared device is one of its own."""
        place, device = self._taker.view.places[position], self._taker.view.device(position)
        account = self._taker.ledger.account_key(place)
        found: list[Hashable] = [(account, consumption.counter_set) for consumption in device.consumes]
        return [*found, position] if self._taker.multiple(position) else found

    def _unit(self, position: int) -> Hashable:
        """The hardware that a device is a part of: equal for devices that draw on the same counters."""
        place, device = self._taker.view.places[position], self._taker.view.device(position)
        if not device.consumes:
            return position
        return (self._taker.ledger.account_key(place), tuple([c.counter_set for c in device.consumes]))

    def order(self) -> list[int]:
        """Positions, those that a good solution probably has first."""
        return sorted(range(len(self._taker.view.places)), key=self._preference)

    def _preference(self, position: int) -> tuple[bool, bool, int, int, int]:
        return (
            self._taker.view.places[position].pool.id not in self._used_pools,
            not self._used_sets.issuperset(self._sets(position)),
            self._unit_sizes[self._units[position]],
            self._weights[position],
            position,
        )

    def signature(self) -> list[Hashable]:
        """Equal for positions that may be exchanged without a change of score."""
        return [self._signature(position) for position in range(len(self._taker.view.places))]

    def _signature(self, position: int) -> Hashable:
        pool, unit = self._taker.view.places[position].pool.id, self._units[position]
        if position in self._bits:
            number, bit = self._bits[position]
            return (pool, self._unit_sizes[unit], self._gpus[number].topology.twins[bit])
        return (pool, self._unit_sizes[unit], unit in self._used_units, self._weights[position])

    def score(self, solution: Solution) -> Score:
        """How good a solution is. Its devices must be taken."""
        masks = [0] * len(self._gpus)
        sets: dict[tuple[int, int], int] = {}
        opened_pools: set[PoolId] = set()
        opened_sets: set[Hashable] = set()
        left = size = 0
        used_now: set[Hashable] = set()
        for taken in solution.taken:
            if taken.alternative.admin:
                continue
            position = taken.position
            used_now.add(self._units[position])
            opened_pools.add(self._taker.view.places[position].pool.id)
            opened_sets.update(self._sets(position))
            left -= self._left(taken)
            size -= self._weights[position]
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
            chosen=tuple(-alternative for alternative in solution.chosen),
            linked=all(topology.fully_linked(mask) for topology, mask in several),
            spared_gb=-sum(self._unit_sizes[unit] for unit in used_now - self._used_units),
            set_links=min((topology.ring_links(mask) for topology, mask in several), default=0),
            ring_links=min((topology.ring_links(mask) for topology, mask in used), default=0),
            opened=-len(opened_sets - self._used_sets),
            left=left,
            size=size,
            fullness=-len(self._free_units - used_now),
            pools=-len(opened_pools - self._used_pools),
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
