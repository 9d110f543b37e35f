"""How good a solution is, term by term."""

from typing import NamedTuple

from tangram.allocation.topology import Rest


class Score(NamedTuple):
    """Why one solution beats another, in order of precedence; greater is better.

    1. `chosen`: minus the number of the subrequest, for each request: earlier ones are preferred.
    2. `linked`: every request for several GPUs gets a fully linked set.
    3. `spared_gb`: minus the nominal memory of the GPUs that nobody used before, taken whole or in part.
    4. `set_links`, `ring_links`: bandwidth of the sets, in links on the narrowest hop.
    5. `opened`: minus the counter sets and shared devices that nobody used before.
    6. `left`: minus what stays free of the shared devices taken, in thousandths.
    7. `size`: minus the capacities of the other devices taken, in units of the smallest on the node.
    8. `fullness`: minus the hardware that stays unused on the node, a GPU with all its devices once: full
       nodes first, so that empty ones stay empty.
    9. `pools`: minus the pools that nobody used before.
    10. `rest`: usefulness of the GPUs that stay free.
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
    pools: int
    rest: tuple[Rest, ...]
