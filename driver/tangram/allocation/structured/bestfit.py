"""Best fit: which of the solutions on one node takes the least away from what may come.

For our own GPUs the terms are those of `tangram.allocation.engine`: linked sets, small GPUs before big ones,
bandwidth, the usefulness of the rest. For devices of any driver: few pools and counter sets opened, small
devices and full shared ones first.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from tangram import DRIVER_NAME
from tangram.allocation.structured.candidates import Taken, Taker
from tangram.allocation.structured.cluster import Device, PoolId
from tangram.allocation.structured.links import gpus_of, is_gpu
from tangram.allocation.structured.parameters import works
from tangram.allocation.structured.search import Solution
from tangram.allocation.topology import Rest
from tangram.model.product import nominal_gigabytes


class Score(NamedTuple):
    """Why one solution beats another, in order of precedence; greater is better.

    1. `chosen`: minus the number of the subrequest, for each request: earlier ones are preferred.
    2. `linked`: every request for several GPUs gets a fully linked set.
    3. `spared_gb`: minus the nominal memory of the whole GPUs taken.
    4. `set_links`, `ring_links`: bandwidth of the sets, in links on the narrowest hop.
    5. `opened`: minus the pools, counter sets and shared devices that nobody used before.
    6. `left`: minus what stays free of the shared devices taken, in thousandths.
    7. `size`: minus the capacities of the other devices taken, in units of the smallest on the node.
    8. `fullness`: minus the devices left free on the node: full nodes first, so that empty ones stay empty.
    9. `rest`: usefulness of the GPUs that stay free.
    """

    chosen: tuple[int, ...]
    linked: bool
    spared_gb: int
    set_links: int
    ring_links: int
    opened: int
    left: int
    size: int
    fullness: int
    rest: tuple[Rest, ...]


class BestFit:
    """Judges solutions on one view, from one state."""

    def __init__(self, taker: Taker) -> None:
        self._taker = taker
        view = taker.view
        self._used_pools: set[PoolId] = set()
        self._used_sets: set[Hashable] = set()
        self._sizes = [0] * len(view.places)
        for position, place in enumerate(view.places):
            device = view.device(position)
            if self._in_use(position):
                self._used_pools.add(place.pool.id)
                self._used_sets |= set(self._sets(position))
            if is_gpu(device):
                self._sizes[position] = _gigabytes(device)
        self._free = [
            not self._in_use(position) and works(view.device(position))
            for position in range(len(view.places))
        ]
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

    def order(self) -> list[int]:
        """Positions, those that a good solution probably has first."""
        return sorted(range(len(self._taker.view.places)), key=self._preference)

    def _preference(self, position: int) -> tuple[bool, bool, int, int, int]:
        return (
            self._taker.view.places[position].pool.id not in self._used_pools,
            not self._used_sets.issuperset(self._sets(position)),
            self._sizes[position],
            self._weights[position],
            position,
        )

    def signature(self) -> list[Hashable]:
        """Equal for positions that may be exchanged without a change of score."""
        return [self._signature(position) for position in range(len(self._taker.view.places))]

    def _signature(self, position: int) -> Hashable:
        pool = self._taker.view.places[position].pool.id
        if position in self._bits:
            number, bit = self._bits[position]
            return (pool, self._sizes[position], self._gpus[number].topology.twins[bit])
        return (pool, self._sizes[position], self._weights[position])

    def score(self, solution: Solution) -> Score:
        """How good a solution is. Its devices must be taken."""
        masks = [0] * len(self._gpus)
        sets: dict[tuple[int, int], int] = {}
        opened_pools: set[PoolId] = set()
        opened_sets: set[Hashable] = set()
        left = size = spared_gb = 0
        used_now: set[int] = set()
        for taken in solution.taken:
            if taken.alternative.admin:
                continue
            position = taken.position
            used_now.add(position)
            opened_pools.add(self._taker.view.places[position].pool.id)
            opened_sets.update(self._sets(position))
            spared_gb -= self._sizes[position]
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
            spared_gb=spared_gb,
            set_links=min((topology.ring_links(mask) for topology, mask in several), default=0),
            ring_links=min((topology.ring_links(mask) for topology, mask in used), default=0),
            opened=-len(opened_pools - self._used_pools) - len(opened_sets - self._used_sets),
            left=left,
            size=size,
            fullness=-sum(free and position not in used_now for position, free in enumerate(self._free)),
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
        sum(
            capacity.value.nano // smallest[device.id.driver, name]
            for name, capacity in device.capacity.items()
            if capacity.value.nano > 0
        )
        for device in devices
    ]
