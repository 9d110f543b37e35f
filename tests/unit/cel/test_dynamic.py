"""Values of which only the evaluation tells the type, and devices as they are published."""

import pytest
from tests.unit.cel.support import OWN, outcome

from tangram.cel.device import by_domain


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("dyn(1).flatten() == []", "no such overload: flatten(int, int)"),
        ("dyn(1).sort() == []", "no such overload: sort(int, int)"),
        ("[dyn([1]), dyn([2])].sort() == []", "list elements must be comparable"),
        ("dyn([optional.of(1)]).sort() == []", "list elements must be comparable"),
        ('[dyn(1), dyn("a")].sort() == []', "list elements must have the same type"),
        ("[1, 2].sortBy(x, dyn([x])) == []", "list elements must be comparable"),
        ("dyn([{}]).isSorted()", "no such overload: isSorted(list)"),
        ("dyn([[1]]).min() == [1]", "no such overload: min(list)"),
        ("{1: 2}.transformMapEntry(k, v, dyn(3)) == {}", "no such overload: cel.@mapInsert(map, int)"),
        (
            "{1: 2, 2: 2}.transformMapEntry(k, v, {v: k}) == {}",
            "insert failed: key of type int already exists",
        ),
        ("optional.unwrap(dyn([device])) == []", "no such overload: optional.unwrap(list)"),
        ("optional.unwrap([dyn(optional.of(1)), dyn(2)]) == []", "a value of type int is not an optional"),
        ("[?dyn(device.driver)] == []", "an optional is needed behind ?, not a string"),
        ("[?dyn(1)] == [1]", "an optional is needed behind ?, not a int"),
        ('{?"a": dyn(device.driver)} == {}', "an optional is needed behind ?, not a string"),
        ('{?"a": dyn(1)} == {"a": 1}', "an optional is needed behind ?, not a int"),
        ("{1: 1}[dyn(1.5)] == 1", "no such key: 1.5"),
        ('"%s".format([b"\\xff"]) == ""', "the bytes are no UTF-8 text"),
        ('"%s".format([{[1]: 1}]) == ""', "no formatting function for map key of type list"),
        ('"%x".format([dyn(1.5)]) == ""', "only integers, byte buffers, and strings can be formatted as hex"),
        ('"%o".format([dyn("a")]) == ""', "octal clause can only be used on integers"),
        (
            'timestamp("2026-01-01T00:00:00Z").getHours("+99:99") == 1',
            "'+99:99' is not the offset of a time zone",
        ),
    ],
)
def test_errors_that_show_when_it_is_evaluated(text: str, cause: str) -> None:
    found = outcome(text)
    assert isinstance(found, str)
    assert found.startswith(f"error: {cause}")


@pytest.mark.parametrize(
    "text",
    [
        "dyn([1, 2]).flatten() == [1, 2]",
        "{1: 2}.transformMapEntry(k, v, {v: k}) == {2: 1}",
        '{1: 2}.transformMapEntry(k, v, {"a": k, "b": v}) == {"a": 1, "b": 2}',
        "optional.unwrap([optional.of(1), optional.none(), optional.of(2)]) == [1, 2]",
        "[optional.none()].unwrapOpt() == []",
        "[?dyn(optional.of(1)), ?optional.none()] == [1]",
        '{?"a": dyn(optional.of(1)), ?"b": optional.none()} == {"a": 1}',
        '{"a": 1} != {"a": 1, "b": 2}',
        # NaN stands where it is met, as it is neither less nor greater.
        '[double("NaN"), 1.0].sort()[1] == 1.0',
        '[1.0, double("NaN")].min() == 1.0',
        '"%s %s %s".format([double("NaN"), double("inf"), -double("inf")]) == "NaN +Inf -Inf"',
        # Numbers are in a list of numbers that equal them.
        "dyn(1) in [1.0, 2.0]",
        "dyn(1) in [1u]",
        "dyn(2u) in [1, 2]",
        "dyn(2.0) in [1, 2]",
        "dyn(2.0) in [1u, 2u]",
        "!(dyn(2.5) in [1, 2])",
        "!(dyn(-1) in [1u])",
        "!(dyn(9223372036854775808u) in [1])",
        "!(1e300 in [dyn(1)])",
        "dyn(1e300) in [1e300]",
    ],
)
def test_values(text: str) -> None:
    assert outcome(text) is True


def test_names_without_a_domain_stand_in_that_of_the_driver() -> None:
    published = {"model": 1, "other.example.com/model": 2, f"{OWN}/size": 3, "other.example.com/size": 4}
    assert by_domain(OWN, published) == {
        OWN: {"model": 1, "size": 3},
        "other.example.com": {"model": 2, "size": 4},
    }
    assert by_domain(OWN, {}) == {OWN: {}}
