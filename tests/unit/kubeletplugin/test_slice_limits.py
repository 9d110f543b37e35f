from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.base.errors import SliceLimitError
from tangram.kubeletplugin.slice_limits import check_pool
from tangram.kubeletplugin.slices import Pool, Slice
from tangram.testing.apiserver.catalog import VERSIONS
from tangram.testing.apiserver.slices import validate

TAINT = {"key": "k", "effect": "NoSchedule"}


def device(number: int = 0, **fields: Any) -> dict[str, Any]:
    return {"name": f"gpu-{number}", **fields}


def devices(count: int, **fields: Any) -> tuple[dict[str, Any], ...]:
    return tuple(device(number, **fields) for number in range(count))


def counter_set(name: str = "set", count: int = 1, value: str = "1") -> dict[str, Any]:
    return {"name": name, "counters": {f"c-{number}": {"value": value} for number in range(count)}}


def consumes(name: str = "set", count: int = 1) -> dict[str, Any]:
    return {
        "counterSet": name,
        "counters": {f"c-{number}": {"value": "1"} for number in range(count)},
    }


def attributes(count: int) -> dict[str, Any]:
    return {f"a{number}": {"int": number} for number in range(count)}


def of(*slices: Slice) -> Pool:
    return Pool(slices=slices)


def with_devices(*found: dict[str, Any]) -> Pool:
    return of(Slice(devices=found))


ALLOWED = {
    "empty": Pool(),
    "128 devices": with_devices(*devices(128)),
    "64 with taints": with_devices(*devices(64, taints=[TAINT])),
    "64 with counters": of(
        Slice(shared_counters=tuple(counter_set(f"s{n}", 32) for n in range(8))),
        Slice(devices=devices(64, consumesCounters=[consumes("s0", 32), consumes("s7", 32)])),
    ),
    "32 attributes and capacities": with_devices(
        device(attributes=attributes(31), capacity={"memory": {"value": "80Gi"}})
    ),
    "48 values": with_devices(
        device(attributes=attributes(20) | {"list": {"ints": list(range(28))}}),
    ),
    "64 bytes": with_devices(device(attributes={"a": {"string": "ä" * 32}})),
    "a domain": with_devices(device(attributes={"resource.kubernetes.io/pcieRoot": {"string": "pci0"}})),
    "empty string": with_devices(device(attributes={"a": {"string": ""}, "b": {"bool": False}})),
    "16 taints": with_devices(device(taints=[TAINT] * 16)),
}


@pytest.mark.parametrize("pool", ALLOWED.values(), ids=ALLOWED)
def test_just_allowed(pool: Pool) -> None:
    check_pool(pool_name="gpu.example.com/node", pool=pool)


REFUSED: dict[str, tuple[Pool, str, str]] = {
    "129 devices": (with_devices(*devices(129)), "129 devices in a slice, at most 128", "gpu-128"),
    "65 devices, the last with a taint": (
        with_devices(*devices(64), device(99, taints=[TAINT])),
        "65 devices in a slice, at most 64 are allowed where one has taints, counters or list attributes",
        "gpu-99",
    ),
    "65 with a list attribute": (
        with_devices(*devices(65, attributes={"a": {"strings": ["x"]}})),
        "at most 64",
        "gpu-0",
    ),
    "65 with counters": (
        of(
            Slice(shared_counters=(counter_set(),)),
            Slice(devices=devices(65, consumesCounters=[consumes()])),
        ),
        "at most 64",
        "gpu-0",
    ),
    "9 counter sets": (
        of(Slice(shared_counters=tuple(counter_set(f"s{n}") for n in range(9)))),
        "9 counter sets in a slice, at most 8 are allowed; spread them over more slices",
        "",
    ),
    "33 counters": (of(Slice(shared_counters=(counter_set(count=33),))), "33 counters of set set", ""),
    "no counters": (of(Slice(shared_counters=(counter_set(count=0),))), "no counters of set set", ""),
    "both kinds": (
        of(Slice(devices=(device(),), shared_counters=(counter_set(),))),
        "a slice has both devices and counter sets",
        "",
    ),
    "33 attributes": (
        with_devices(device(attributes=attributes(32), capacity={"memory": {"value": "1"}})),
        "device gpu-0: 33 attributes and capacities, at most 32",
        "gpu-0",
    ),
    "49 values": (
        with_devices(device(attributes={"list": {"ints": list(range(49))}})),
        "49 attribute values, at most 48",
        "gpu-0",
    ),
    "65 bytes": (
        with_devices(device(attributes={"a": {"string": "ä" * 32 + "x"}})),
        "65 bytes in attribute a, at most 64",
        "gpu-0",
    ),
    "NVIDIA's version": (
        with_devices(device(attributes={"driverVersion": {"version": "535.104.05"}})),
        "attribute driverVersion: '535.104.05' is not a semantic version",
        "gpu-0",
    ),
    "no value": (with_devices(device(attributes={"a": {}})), "attribute a needs exactly one of", "gpu-0"),
    "empty list": (
        with_devices(device(attributes={"a": {"ints": []}})),
        "attribute a needs exactly one of",
        "gpu-0",
    ),
    "two values": (
        with_devices(device(attributes={"a": {"int": 1, "bool": True}})),
        "attribute a needs exactly one of",
        "gpu-0",
    ),
    "attribute name": (
        with_devices(device(attributes={"no-dashes": {"int": 1}})),
        "attribute name 'no-dashes'",
        "gpu-0",
    ),
    "capacity name": (
        with_devices(device(capacity={"Gpu.io/memory": {"value": "1"}})),
        "capacity name 'Gpu.io/memory'",
        "gpu-0",
    ),
    "quantity": (
        with_devices(device(capacity={"memory": {"value": "80 GB"}})),
        "capacity memory: '80 GB' is not a quantity",
        "gpu-0",
    ),
    "device name": (with_devices({"name": "GPU_0"}), "its name ('GPU_0') is not a DNS label", "GPU_0"),
    "no device name": (with_devices({}), "its name ('None') is not a DNS label", "None"),
    "same name in two slices": (
        of(Slice(devices=(device(),)), Slice(devices=(device(),))),
        "device gpu-0 is there 2 times",
        "gpu-0",
    ),
    "same counter set twice": (
        of(Slice(shared_counters=(counter_set(),)), Slice(shared_counters=(counter_set(),))),
        "counter set set is there 2 times",
        "",
    ),
    "unknown counter set": (
        with_devices(device(consumesCounters=[consumes("absent")])),
        "device gpu-0 consumes counter set absent, which the pool does not have",
        "gpu-0",
    ),
    "unknown counter": (
        of(
            Slice(shared_counters=(counter_set(),)),
            Slice(devices=(device(consumesCounters=[consumes(count=2)]),)),
        ),
        "device gpu-0 consumes counters ['c-1'] of set set, which the pool does not have",
        "gpu-0",
    ),
    "3 counter sets consumed": (
        with_devices(device(consumesCounters=[consumes(f"s{n}") for n in range(3)])),
        "3 counter sets consumed, at most 2",
        "gpu-0",
    ),
    "17 taints": (with_devices(device(taints=[TAINT] * 17)), "17 taints, at most 16", "gpu-0"),
    "5 binding conditions": (
        with_devices(device(bindingConditions=["c"] * 5)),
        "5 bindingConditions, at most 4",
        "gpu-0",
    ),
}


@pytest.mark.parametrize(("pool", "text", "culprit"), REFUSED.values(), ids=REFUSED)
def test_refused(pool: Pool, text: str, culprit: str) -> None:
    with pytest.raises(SliceLimitError) as caught:
        check_pool(pool_name="pool", pool=pool)
    assert str(caught.value).startswith("pool pool: ")
    assert text in str(caught.value)
    assert caught.value.device == culprit


@pytest.mark.parametrize("name", ["", "/", "a//b", "A", "a_b", "x" * 254, "a/" + "-"])
def test_pool_names(name: str) -> None:
    with pytest.raises(SliceLimitError, match="not DNS subdomains separated by '/'"):
        check_pool(pool_name=name, pool=Pool())


counts = st.integers(0, 40)


@given(
    st.lists(
        st.fixed_dictionaries(
            {"attributes": counts.map(attributes), "taints": st.integers(0, 17).map(lambda n: [TAINT] * n)}
        ),
        max_size=4,
    ),
    st.integers(0, 130),
    st.lists(st.integers(0, 33), max_size=9),
)
def test_what_passes_is_accepted_by_the_api_server(
    special: list[dict[str, Any]], plain: int, counters: list[int]
) -> None:
    """One implementation of the rules against the other."""
    found = (*devices(plain), *(device(1000 + n, **fields) for n, fields in enumerate(special)))
    sets = tuple(counter_set(f"s{n}", count) for n, count in enumerate(counters))
    pool = of(Slice(devices=found), Slice(shared_counters=sets))
    problems = [
        problem
        for spec in pool.specs(driver_name="d", node_name="n", pool_name="p")
        for problem in validate(
            {"spec": spec | {"pool": spec["pool"] | {"generation": 1}}}, None, VERSIONS["1.36"]
        )
    ]
    try:
        check_pool(pool_name="p", pool=pool)
    except SliceLimitError:
        assert problems
    else:
        assert not problems
