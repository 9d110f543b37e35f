"""Machines by their full and their short names."""

import pytest

from tangram.base.errors import UsageError
from tangram.hardware.machines import shipped_machines
from tangram.playground.machines import listing, parse_machines, shortest_name


@pytest.mark.parametrize("name", shipped_machines())
def test_every_machine_has_a_short_name_that_means_it(name: str) -> None:
    short = shortest_name(name)
    assert len(short) <= len(name)
    assert parse_machines(short) == parse_machines(name) == (name,)
    assert any(line.split()[:2] == [short, name] for line in listing())


@pytest.mark.parametrize(
    ("short", "name"),
    [
        ("a100x8", "a100-sxm4-80gb-x8"),
        ("dgx1v", "dgx-1v"),
        ("h100x8", "h100-sxm5-80gb-x8"),
        ("h200x8", "h200-sxm5-141gb-x8"),
        ("A100-40GB-x8", "a100-sxm4-40gb-x8"),
        ("h100nvlx8", "h100-nvl-94gb-x8"),
        ("t4x4", "t4-x4"),
        ("gb10", "gb10"),
    ],
)
def test_short_names(short: str, name: str) -> None:
    assert parse_machines(f"{short}, t4x4") == (name, "t4-x4")


@pytest.mark.parametrize("text", ["", ",", ",".join(["t4x4"] * 17), "100x8", "a100", "x8", "a100x80gb8"])
def test_what_is_no_machine_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_machines(text)
