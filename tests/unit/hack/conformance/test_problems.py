"""Generated problems are objects that an API server would keep, cover every topic, and can be made again."""

from collections import Counter
from itertools import islice
from random import Random

import kubernetes_validate
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.draw import topics_of
from conformance.problems import Problem, numbered, problem, problems
from conformance.reduce import reduced
from conformance.versions import VERSIONS, Version, version_of

EVERY_VERSION = pytest.mark.parametrize("version", VERSIONS.values(), ids=list(VERSIONS))


@EVERY_VERSION
def test_objects_have_the_form_of_the_api(version: Version) -> None:
    for number in range(6):
        for item in numbered(7, number, version).items:
            kubernetes_validate.validate(item, "1.37", strict=True)


@EVERY_VERSION
def test_a_problem_can_be_made_again_from_its_number(version: Version) -> None:
    first = list(islice(problems(3, version), 5))
    assert first == [numbered(3, number, version) for number in range(5)]
    assert numbered(4, 0, version) != first[0]


@EVERY_VERSION
def test_every_topic_and_feature_occurs(version: Version) -> None:
    topics: Counter[str] = Counter()
    features: Counter[str] = Counter()
    for number in range(300):
        made = numbered(1, number, version)
        topics.update(made.topics)
        features.update(made.features)
    assert set(topics) == set(topics_of(version))
    assert set(features) == set(version.features)


@EVERY_VERSION
def test_names_are_unique_among_objects(version: Version) -> None:
    for number in range(100):
        names = [(item["kind"], item["metadata"]["name"]) for item in numbered(5, number, version).items]
        assert len(set(names)) == len(names)


def test_slices_hold_devices_or_counters_as_the_version_wants() -> None:
    kinds: dict[str, set[tuple[bool, bool]]] = {}
    for name, version in VERSIONS.items():
        specs = [
            item["spec"]
            for number in range(200)
            for item in numbered(1, number, version).items
            if item["kind"] == "ResourceSlice"
        ]
        kinds[name] = {("devices" in spec, "sharedCounters" in spec) for spec in specs}
    assert kinds["1.34"] == {(True, False), (True, True)}
    assert kinds["1.36"] == kinds["1.37"] == {(True, False), (False, True)}


def test_versions_go_by_either_name() -> None:
    assert version_of("1.36") is version_of("v0.36.3") is version_of("1.36.3") is version_of("k8s-1.36")
    with pytest.raises(Exception, match=r"choose from 1\.34, 1\.35, 1\.36, 1\.36\.6, 1\.37"):
        version_of("1.33")


def _devices(made: Problem) -> list[str]:
    return [
        device["name"]
        for item in made.items
        if item["kind"] == "ResourceSlice"
        for device in item["spec"].get("devices", ())
    ]


@settings(max_examples=25)
@given(st.randoms(use_true_random=False), st.sampled_from(list(VERSIONS.values())))
def test_reducing_keeps_what_it_is_told_to_keep_and_nothing_else(random: Random, version: Version) -> None:
    made = problem(random, version)
    wanted = _devices(made)[-1]
    small = reduced(made, lambda smaller: wanted in _devices(smaller))
    assert _devices(small) == [wanted]
    assert [item["kind"] for item in small.items] == ["ResourceSlice"]
    assert small.features == ()
    (item,) = small.items
    (device,) = item["spec"]["devices"]
    assert set(device) <= {
        "name",
        "bindingConditions",
        "bindingFailureConditions",
        "nodeName",
        "allNodes",
        "nodeSelector",
    }


def test_a_slice_is_taken_out_together_with_its_count() -> None:
    version = VERSIONS["1.37"]
    for number in range(200):
        made = numbered(1, number, version)
        if sum(item["kind"] == "ResourceSlice" for item in made.items) > 2:
            break

    def complete(smaller: Problem) -> bool:
        specs = [item["spec"] for item in smaller.items if item["kind"] == "ResourceSlice"]
        pools = Counter((spec["driver"], spec["pool"]["name"]) for spec in specs)
        return bool(specs) and all(
            pools[spec["driver"], spec["pool"]["name"]] == spec["pool"]["resourceSliceCount"]
            for spec in specs
        )

    assert complete(made)
    assert len([item for item in reduced(made, complete).items if item["kind"] == "ResourceSlice"]) == 1
