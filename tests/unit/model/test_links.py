"""The link matrix: rows as published, rings against brute force, groups that are what they say."""

from itertools import combinations, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.hardware.machines import load_machine
from tangram.hardware.simulated import describe_machine
from tangram.model.gpu import Machine
from tangram.model.links import LinkMatrix, LinkRow, disjoint_groups

ROWS = {
    "none": LinkRow(),
    "sw:18": LinkRow(switch_links=18),
    "1:2,3:1": LinkRow(direct=((1, 2), (3, 1))),
    "0:12": LinkRow(direct=((0, 12),)),
}


def machine(name: str, node: str = "node-1") -> Machine:
    return describe_machine(load_machine(name), node_name=node)


def switched(count: int, links: int = 12) -> LinkMatrix:
    return LinkMatrix({ordinal: LinkRow(switch_links=links) for ordinal in range(count)})


def matrix_of(edges: dict[tuple[int, int], int], count: int) -> LinkMatrix:
    """A symmetric matrix from pairs of ordinals."""
    rows: dict[int, list[tuple[int, int]]] = {ordinal: [] for ordinal in range(count)}
    for (a, b), links in edges.items():
        rows[a].append((b, links))
        rows[b].append((a, links))
    return LinkMatrix({ordinal: LinkRow(direct=tuple(sorted(row))) for ordinal, row in rows.items()})


@st.composite
def matrices(draw: st.DrawFn, most: int = 6, widest: int = 3) -> LinkMatrix:
    count = draw(st.integers(min_value=1, max_value=most))
    pairs = list(combinations(range(count), 2))
    widths = draw(
        st.lists(st.integers(min_value=0, max_value=widest), min_size=len(pairs), max_size=len(pairs))
    )
    return matrix_of({pair: links for pair, links in zip(pairs, widths, strict=True) if links}, count)


@pytest.mark.parametrize(("text", "row"), ROWS.items())
def test_rows_as_published(text: str, row: LinkRow) -> None:
    assert row.encode() == text
    assert LinkRow.decode(text) == row


@pytest.mark.parametrize(
    "text", ["", "x", "sw:", "sw:1000", "1:2,", "1", "1:2;3:1", "row:", "row:A", "sw:1,1:2", "\u0661:2"]
)
def test_a_foreign_row_counts_as_no_links(text: str) -> None:
    assert LinkRow.decode(text) == LinkRow()


@pytest.mark.parametrize("count", [9, 15, 16, 17, 32, 60])
def test_long_rows_fit_and_lose_nothing(count: int) -> None:
    for ordinal in (0, count // 2, count - 1):
        row = LinkRow(direct=tuple((peer, 1 + peer % 18) for peer in range(count) if peer != ordinal))
        text = row.encode()
        assert len(text) <= 64
        assert LinkRow.decode(text) == row


links_counts = st.dictionaries(
    st.integers(min_value=0, max_value=59), st.integers(min_value=1, max_value=35), max_size=59
)


@given(links_counts)
def test_any_row_survives_the_journey(counts: dict[int, int]) -> None:
    row = LinkRow(direct=tuple(sorted(counts.items())))
    text = row.encode()
    assert len(text) <= 64
    assert LinkRow.decode(text) == row


@given(st.dictionaries(st.integers(min_value=0, max_value=999), st.integers(min_value=1, max_value=999)))
def test_no_row_is_longer_than_an_attribute_may_be(counts: dict[int, int]) -> None:
    assert len(LinkRow(direct=tuple(sorted(counts.items()))).encode()) <= 64


@given(st.text(max_size=70))
def test_any_text_is_a_row(text: str) -> None:
    assert isinstance(LinkRow.decode(text), LinkRow)


def test_the_weaker_end_counts() -> None:
    matrix = LinkMatrix(
        {
            0: LinkRow(switch_links=18),
            1: LinkRow(switch_links=12),
            2: LinkRow(direct=((3, 2), (9, 1))),
            3: LinkRow(direct=((2, 1),)),
        }
    )
    assert matrix.links(0, 1) == 12
    assert matrix.links(2, 3) == matrix.links(3, 2) == 1
    assert matrix.links(0, 2) == matrix.links(2, 9) == matrix.links(0, 0) == 0
    assert matrix.peers(0) == (1,)
    assert matrix.peers(9) == ()
    assert matrix.fully_linked([0])
    assert matrix.fully_linked([])
    assert not matrix.fully_linked([0, 1, 2])


def brute_force_ring(matrix: LinkMatrix, members: tuple[int, ...]) -> int:
    if len(members) < 2:
        return 0
    first, *rest = members
    return max(
        min(matrix.links(a, b) for a, b in zip((first, *order), (*order, first), strict=True))
        for order in permutations(rest)
    )


@settings(max_examples=50)
@given(matrices(most=6))
def test_rings_against_brute_force(matrix: LinkMatrix) -> None:
    for size in range(len(matrix.rows) + 1):
        for members in combinations(matrix.rows, size):
            assert matrix.ring_links(members) == brute_force_ring(matrix, members)
            assert matrix.ring_links(members[::-1]) == matrix.ring_links(members)


def test_rings_on_a_switch() -> None:
    assert switched(8, 18).ring_links(range(8)) == 18
    assert switched(16, 6).ring_links(range(16)) == 6
    degraded = LinkMatrix({**switched(8, 18).rows, 5: LinkRow(switch_links=16)})
    assert degraded.ring_links(range(8)) == 16
    assert degraded.ring_links([0, 1, 2]) == 18


def test_rings_of_the_cube_mesh() -> None:
    gpus = machine("dgx-1v")
    matrix = gpus.links()
    ordinal = {gpu.index: position for position, gpu in enumerate(gpus.gpus)}
    # Single links reach all eight GPUs; the double links alone close into a ring of eight as well.
    assert matrix.ring_links([ordinal[i] for i in range(8)]) == 2
    assert matrix.ring_links([ordinal[i] for i in (0, 1, 2, 3)]) == 1
    assert matrix.ring_links([ordinal[i] for i in (0, 3)]) == 2
    assert matrix.ring_links([ordinal[i] for i in (0, 5)]) == 0
    assert matrix.ring_links([ordinal[i] for i in (0, 1, 5, 4)]) == 1


@settings(max_examples=60)
@given(matrices(most=8), st.sampled_from([2, 3, 4, 8]))
def test_groups_are_disjoint_linked_and_deterministic(matrix: LinkMatrix, size: int) -> None:
    groups = disjoint_groups(matrix, size)
    members = [ordinal for group in groups for ordinal in group]
    assert len(members) == len(set(members))
    for group in groups:
        assert len(group) == size
        assert tuple(sorted(group)) == group
        assert matrix.fully_linked(group)
    reordered = LinkMatrix(dict(sorted(matrix.rows.items(), reverse=True)))
    assert disjoint_groups(reordered, size) == groups


@settings(max_examples=60)
@given(matrices(most=8), st.sampled_from([2, 4]))
def test_no_group_is_left_among_the_rest(matrix: LinkMatrix, size: int) -> None:
    """Of the GPUs that are in no parent group, no further group could be built."""
    inside = {ordinal for group in disjoint_groups(matrix, size * 2) for ordinal in group}
    inside |= {ordinal for group in disjoint_groups(matrix, size) for ordinal in group}
    rest = [ordinal for ordinal in matrix.rows if ordinal not in inside]
    assert not any(matrix.fully_linked(group) for group in combinations(rest, size))


@settings(max_examples=60)
@given(matrices(most=8), st.sampled_from([2, 4]))
def test_a_parent_group_is_two_small_ones(matrix: LinkMatrix, size: int) -> None:
    small = [set(group) for group in disjoint_groups(matrix, size)]
    for parent in disjoint_groups(matrix, size * 2):
        assert sum(group <= set(parent) for group in small) == 2


@pytest.mark.parametrize("name", ["a100-sxm4-80gb-x8", "h100-sxm5-80gb-x8"])
def test_groups_on_a_switch_are_nested(name: str) -> None:
    matrix = machine(name).links()
    assert disjoint_groups(matrix, 8) == (tuple(range(8)),)
    assert disjoint_groups(matrix, 4) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert disjoint_groups(matrix, 2) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert disjoint_groups(matrix, 16) == ()


@pytest.mark.parametrize("node", [f"node-{number}" for number in range(20)])
def test_groups_of_the_cube_mesh_are_its_two_halves(node: str) -> None:
    """Whatever order the UUIDs of a node put the GPUs in."""
    gpus = machine("dgx-1v", node)
    matrix = gpus.links()
    index = [gpu.index for gpu in gpus.gpus]
    fours = disjoint_groups(matrix, 4)
    assert {frozenset(index[o] for o in group) for group in fours} == {
        frozenset({0, 1, 2, 3}),
        frozenset({4, 5, 6, 7}),
    }
    pairs = disjoint_groups(matrix, 2)
    assert len(pairs) == 4
    assert all(matrix.links(*pair) == 2 for pair in pairs)
    assert all(any(set(pair) <= set(four) for four in fours) for pair in pairs)
    assert disjoint_groups(matrix, 8) == ()


def test_the_widest_group_comes_first_but_not_at_the_cost_of_another() -> None:
    # 1-2 is the widest pair, but taking it would leave 0 and 3 alone.
    path = matrix_of({(0, 1): 1, (1, 2): 4, (2, 3): 1}, 4)
    assert disjoint_groups(path, 2) == ((0, 1), (2, 3))
    square = matrix_of({(0, 1): 1, (2, 3): 1, (0, 2): 2, (1, 3): 2}, 4)
    assert disjoint_groups(square, 2) == ((0, 2), (1, 3))


def test_no_links_no_groups() -> None:
    assert disjoint_groups(machine("t4-x4").links(), 2) == ()
    assert disjoint_groups(LinkMatrix({}), 2) == ()


def test_sixteen_gpus_are_no_work() -> None:
    """Counts the questions asked instead of the time: every pair is looked up a few times at most."""

    class Counting(LinkMatrix):
        asked = 0

        def links(self, first: int, second: int) -> int:
            Counting.asked += 1
            return super().links(first, second)

    rows = {i: LinkRow(direct=tuple((j, 1) for j in range(16) if j != i)) for i in range(16)}
    assert len(disjoint_groups(Counting(rows), 8)) == 2
    assert Counting.asked <= 2 * 16 * 16
