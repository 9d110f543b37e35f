"""Semantic versions (SemVer 2.0.0), and vendors' versions made into some."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.model.semver import SemVer, normalize_version

ASCENDING = [
    "0.0.0",
    "0.0.1",
    "0.9.0",
    "1.0.0-0",
    "1.0.0-2",
    "1.0.0-10",
    "1.0.0--",
    "1.0.0-alpha",
    "1.0.0-alpha.1",
    "1.0.0-alpha.beta",
    "1.0.0-beta",
    "1.0.0-beta.2",
    "1.0.0-beta.11",
    "1.0.0-rc.1",
    "1.0.0",
    "1.0.1",
    "1.2.0",
    "1.10.0",
    "2.0.0",
    "570.86.15",
    "580.126.20",
]
INVALID = [
    *("", "1", "1.2", "1.2.3.4", "01.2.3", "1.02.3", "1.2.03", "v1.2.3", "1.2.3-", "1.2.3-01", "1.2.3-a..b"),
    *("1.2.3+", "1.2.3+a+b", " 1.2.3", "1.2.3\n", "1.2.x", "\u0661.2.3", "1.2.3-é", "535.104.05", "-1.2.3"),
]


def test_precedence() -> None:
    shuffled = [SemVer(text) for text in ASCENDING]
    random.Random(7).shuffle(shuffled)
    assert [version.text for version in sorted(shuffled)] == ASCENDING
    for lower, higher in pairwise(ASCENDING):
        assert SemVer(lower) < SemVer(higher)
        assert SemVer(higher) > SemVer(lower)
        assert SemVer(lower) != SemVer(higher)


def test_build_metadata_does_not_count() -> None:
    assert SemVer("1.2.3+a") == SemVer("1.2.3+b.2")
    assert hash(SemVer("1.2.3+a")) == hash(SemVer("1.2.3"))
    assert SemVer("1.2.3-rc+a").text == "1.2.3-rc+a"


def test_parts() -> None:
    version = SemVer("580.126.20-rc.1+x")
    assert (version.major, version.minor, version.patch) == (580, 126, 20)
    assert version != "580.126.20"
    assert repr(version) == "SemVer('580.126.20-rc.1+x')"


@pytest.mark.parametrize("text", INVALID)
def test_what_is_no_version(text: str) -> None:
    with pytest.raises(ValueError, match="is not a semantic version"):
        SemVer(text)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("580.126.20", "580.126.20"),
        ("535.104.05", "535.104.5"),
        ("570.86", "570.86.0"),
        ("13.0", "13.0.0"),
        ("12.4", "12.4.0"),
        ("", "0.0.0"),
        ("N/A", "0.0.0"),
        ("v550.54.15-grid", "550.54.15"),
        ("1.2.3.4", "1.2.3"),
        ("99999999999999999999.1", "999999999.1.0"),
        ("9" * 5000, "999999999.0.0"),
    ],
)
def test_vendors_versions(text: str, version: str) -> None:
    assert normalize_version(text) == version


@given(st.text(max_size=100))
def test_every_text_becomes_a_version_that_can_be_published(text: str) -> None:
    version = normalize_version(text)
    assert SemVer(version).text == version
    assert len(version) <= 64
    assert normalize_version(version) == version


versions = st.builds(
    lambda core, pre: f"{'.'.join(map(str, core))}{'-' + '.'.join(pre) if pre else ''}",
    st.tuples(*[st.integers(min_value=0, max_value=3)] * 3),
    st.lists(st.sampled_from(["0", "1", "10", "a", "a1", "-"]), max_size=3),
)


@given(versions, versions, versions)
def test_the_order_is_total(a: str, b: str, c: str) -> None:
    x, y, z = SemVer(a), SemVer(b), SemVer(c)
    assert [x < y, x == y, x > y].count(True) == 1
    if x <= y <= z:
        assert x <= z
