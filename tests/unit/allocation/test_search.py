"""The search for sets on one node: the best one, whatever the links are, and an end, whatever is asked."""

import random
from collections.abc import Iterator
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from tangram.allocation.devices import members
from tangram.allocation.search import Node, SetTerms, Slot, Values, best_choice
from tangram.allocation.topology import Rest, Topology, topology_of

ENOUGH = 1_000_000


def topology(count: int, links: dict[tuple[int, int], int], groups: dict[int, int] | None = None) -> Topology:
    """Direct links by pairs; `groups`: size → how many groups of consecutive GPUs."""
    rows = []
    for a in range(count):
        peers = {b: n for pair, n in links.items() for b in pair if a in pair and b != a}
        rows.append(",".join(f"{b}:{n}" for b, n in sorted(peers.items())) or "none")
    ids = {
        size: tuple(f"g{i // size}" if i // size < number else None for i in range(count))
        for size, number in (groups or {}).items()
    }
    return topology_of(tuple(rows), ids)


def irregular(count: int, *, seed: int, part: float = 0.5) -> Topology:
    rng = random.Random(seed)
    pairs = combinations(range(count), 2)
    return topology(count, {pair: rng.randint(1, 4) for pair in pairs if rng.random() < part})


def on_switch(count: int, groups: dict[int, int] | None = None) -> Topology:
    ids = {
        size: tuple(f"g{i // size}" if i // size < number else None for i in range(count))
        for size, number in (groups or {}).items()
    }
    return topology_of(("sw:18",) * count, ids)


def node(of: Topology, free: int | None = None) -> Node:
    count = len(of.twins)
    return Node(of, (1 << count) - 1 if free is None else free, (80,) * count)


def slot(candidates: int, size: int, *, linked: bool = False, constraints: tuple[int, ...] = ()) -> Slot:
    return Slot(candidates, size, linked, constraints)


links_of_eight = st.dictionaries(
    st.sampled_from(list(combinations(range(8), 2))), st.integers(1, 3), max_size=28
)


layouts = st.one_of(
    st.sampled_from(
        [topology(8, {}), on_switch(8), on_switch(8, {2: 4, 4: 2, 8: 1}), topology(8, {}, {2: 2})]
    ),
    st.builds(topology, st.just(8), links_of_eight, st.sampled_from([{}, {2: 4}, {2: 2, 4: 1}])),
)


@st.composite
def tasks(draw: st.DrawFn) -> tuple[Node, tuple[Slot, ...], tuple[Values, ...]]:
    """Few kinds of slots, devices and values, so that many are alike."""
    free = draw(st.one_of(st.just(255), st.integers(1, 255)))
    sizes_gb = draw(st.sampled_from([(80,) * 8, (80, 40, 40, 80, 80, 40, 80, 80)]))
    values = st.sampled_from(
        [(0,) * 8, (0, 0, 0, 0, 1, 1, 1, 1), (0, 1, 0, 1, 0, 1, 0, 1), (-1, 0, 0, 0, 0, 1, 1, 0)]
    )
    constraints = tuple(draw(st.lists(values, max_size=2)))
    kinds = st.builds(
        Slot,
        st.sampled_from([255, 255, 15, 0b10101010]).map(lambda mask: mask & free),
        st.integers(1, 3),
        st.booleans(),
        st.sampled_from([(), (0,), (0, 1)]).map(lambda c: tuple(i for i in c if i < len(constraints))),
    )
    slots = [
        kind
        for kind, times in draw(st.lists(st.tuples(kinds, st.integers(1, 3)), min_size=1, max_size=2))
        for _ in range(times)
    ]
    return Node(draw(layouts), free, sizes_gb), tuple(slots[:4]), constraints


def all_choices(
    where: Node, slots: tuple[Slot, ...], constraints: tuple[Values, ...], used: int = 0
) -> Iterator[tuple[int, ...]]:
    """By definition: every way to fill the slots, without the constraints across slots."""
    if not slots:
        yield ()
        return
    first = slots[0]
    for positions in combinations(members(first.candidates & ~used), first.size):
        mask = sum(1 << p for p in positions)
        if first.linked and not where.topology.fully_linked(mask):
            continue
        for rest in all_choices(where, slots[1:], constraints, used | mask):
            yield (mask, *rest)


def obeys(masks: tuple[int, ...], slots: tuple[Slot, ...], constraints: tuple[Values, ...]) -> bool:
    for index, values in enumerate(constraints):
        covered = [
            values[p]
            for mask, s in zip(masks, slots, strict=True)
            if index in s.constraints
            for p in members(mask)
        ]
        if len(set(covered)) > 1 or -1 in covered:
            return False
    return True


def terms(where: Node, masks: tuple[int, ...]) -> SetTerms:
    of, used = where.topology, sum(masks)
    sets = [mask for mask in masks if mask.bit_count() > 1]
    return SetTerms(
        linked=all(of.fully_linked(mask) for mask in sets),
        spared_gb=-sum(where.sizes_gb[p] for p in members(used)),
        set_links=min((of.ring_links(mask) for mask in sets), default=0),
        ring_links=of.ring_links(used),
        rest=of.rest(where.free & ~used),
    )


@given(tasks())
def test_equals_brute_force_on_eight_gpus(task: tuple[Node, tuple[Slot, ...], tuple[Values, ...]]) -> None:
    where, slots, constraints = task
    outcome = best_choice(where, slots, constraints, ENOUGH)
    assert outcome.complete
    choices = [m for m in all_choices(where, slots, constraints) if obeys(m, slots, constraints)]
    if not choices:
        assert outcome.choice is None
        return
    assert outcome.choice is not None
    assert outcome.choice.masks in choices
    assert outcome.choice.terms == max(terms(where, masks) for masks in choices)


class TestSymmetry:
    def test_of_equal_gpus_one_choice_is_tried(self) -> None:
        where = node(topology(16, {}))
        outcome = best_choice(where, (slot(where.free, 8),), (), ENOUGH)
        assert outcome.choice is not None
        assert outcome.choice.masks == (0xFF,)
        assert outcome.steps < 200

    def test_eight_of_sixteen_on_a_switch_with_groups(self) -> None:
        where = node(on_switch(16, {2: 8, 4: 4, 8: 2}))
        outcome = best_choice(where, (slot(where.free, 8),), (), ENOUGH)
        assert outcome.choice is not None
        assert outcome.choice.terms.rest.groups8 == 1
        assert outcome.steps < 10_000

    def test_equal_requests_are_not_permuted(self) -> None:
        where = node(irregular(8, seed=1))
        outcome = best_choice(where, (slot(where.free, 1),) * 8, (), ENOUGH)
        assert outcome.choice is not None
        assert outcome.steps < 1_000

    def test_requests_that_are_equal_but_not_neighbours_are_not_permuted_either(self) -> None:
        where = node(topology(8, {}))
        slots = (slot(0xFF, 1), slot(0xFE, 1)) * 4
        assert best_choice(where, slots, (), ENOUGH).steps < 1_000


class TestBounds:
    """Each of these would take from minutes to ages without a bound."""

    def test_the_budget_ends_the_search_with_the_best_so_far(self) -> None:
        where = node(irregular(32, seed=2))
        outcome = best_choice(where, (slot(where.free, 16),), (), 500)
        assert not outcome.complete
        assert outcome.choice is not None
        assert 500 <= outcome.steps < 1_000

    def test_the_answer_is_the_same_every_time(self) -> None:
        where = node(irregular(32, seed=3))
        first = best_choice(where, (slot(where.free, 16),), (), 500)
        best_choice.cache_clear()
        assert best_choice(where, (slot(where.free, 16),), (), 500) == first

    def test_judging_sets_with_irregular_links_counts(self) -> None:
        where = node(irregular(16, seed=4))
        outcome = best_choice(where, (slot(where.free, 8),), (), 10_000)
        assert outcome.choice is not None
        assert not outcome.complete

    def test_many_linked_sets_of_a_large_node(self) -> None:
        where = node(irregular(64, seed=5, part=0.1))
        outcome = best_choice(where, (slot(where.free, 2, linked=True),) * 32, (), 10_000)
        assert outcome.steps < 11_000

    def test_the_largest_linked_set_of_unlinked_gpus(self) -> None:
        assert topology(64, {}).largest_linked((1 << 64) - 1) == (1, True)

    def test_the_largest_linked_set_of_irregular_links_is_a_bound(self) -> None:
        largest, certain = irregular(64, seed=6, part=0.9).largest_linked((1 << 64) - 1)
        assert largest >= 10
        assert not certain

    def test_the_rest_of_irregular_links(self) -> None:
        rest = irregular(64, seed=7, part=0.8).rest((1 << 64) - 1)
        assert rest.linked2 >= 28
        assert rest.linked4 >= 10

    def test_rings_of_many_gpus(self) -> None:
        of = irregular(32, seed=8, part=1.0)
        assert of.ring_links((1 << 32) - 1) == 1


@given(links_of_eight, st.integers(0, 255))
def test_linked_sets_of_eight_gpus_are_exact(links: dict[tuple[int, int], int], free: int) -> None:
    of = topology(8, links)

    def largest(mask: int) -> int:
        sizes = range(mask.bit_count(), 0, -1)
        positions = members(mask)
        return next(
            (s for s in sizes for c in combinations(positions, s) if of.fully_linked(sum(1 << p for p in c))),
            0,
        )

    def disjoint(mask: int, size: int) -> int:
        sets = [sum(1 << p for p in c) for c in combinations(members(mask), size)]
        return max((1 + disjoint(mask & ~s, size) for s in sets if of.fully_linked(s)), default=0)

    assert of.largest_linked(free) == (largest(free), True)
    rest = of.rest(free)
    assert (rest.linked8, rest.linked4, rest.linked2) == (
        disjoint(free, 8),
        disjoint(free, 4),
        disjoint(free, 2),
    )


@given(links_of_eight, st.sampled_from([{}, {2: 4}, {4: 2}, {2: 2, 4: 1}]))
def test_exchanging_twins_changes_nothing(links: dict[tuple[int, int], int], groups: dict[int, int]) -> None:
    of = topology(8, links, groups)
    for a, b in combinations(range(8), 2):
        if of.twins[a] != of.twins[b]:
            continue
        for mask in range(256):
            exchanged = mask
            if (mask >> a & 1) != (mask >> b & 1):
                exchanged = mask ^ (1 << a | 1 << b)
            assert of.fully_linked(exchanged) == of.fully_linked(mask)
            assert of.rest(exchanged) == of.rest(mask)


def test_rest_prefers_what_cannot_be_made_again() -> None:
    assert Rest(1, 0, 0, 0, 0, 0) > Rest(0, 9, 9, 9, 9, 9)
