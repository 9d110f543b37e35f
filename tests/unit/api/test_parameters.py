"""Decoding GPUClaimParameters: what is accepted, and what the errors say."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from tangram.api import GPUClaimParameters, MpsParameters, decode_parameters, lower, merge
from tangram.base.errors import InvalidObjectError

HEAD = {"apiVersion": "gpu.resource.admin/v1alpha1", "kind": "GPUClaimParameters"}
OBJECT = "ResourceClaim default/c"
FIELD = "spec.devices.config[0].opaque.parameters"
EVERY_FIELD: dict[str, Any] = {
    "memoryGB": 80,
    "gpuType": "H100",
    "nvLinkPeers": 8,
    "migProfile": "3g.40gb",
    "shPolicy": "exclusive",
    "mps": {"threadPercent": 50, "pinnedMemory": "16Gi"},
    "replicas": 4,
    "alternatives": {"big": 2, "small": 1.5},
    "latencySensitive": True,
    "longKernels": False,
}


def decode(raw: bytes) -> GPUClaimParameters:
    return decode_parameters(raw, object_name=OBJECT, field=FIELD)


def parameters(**fields: Any) -> GPUClaimParameters:
    return decode(json.dumps({**HEAD, **fields}).encode())


def refused(raw: bytes | dict[str, Any]) -> InvalidObjectError:
    with pytest.raises(InvalidObjectError) as caught:
        decode(raw if isinstance(raw, bytes) else json.dumps({**HEAD, **raw}).encode())
    assert str(caught.value).startswith(f"{OBJECT}: {FIELD}")
    assert len(str(caught.value)) < 500
    return caught.value


def test_every_field() -> None:
    assert parameters(**EVERY_FIELD) == GPUClaimParameters(
        memory_gb=80,
        gpu_type="H100",
        nv_link_peers=8,
        mig_profile="3g.40gb",
        sh_policy="exclusive",
        mps=MpsParameters(thread_percent=50, pinned_memory="16Gi"),
        replicas=4,
        alternatives={"big": 2.0, "small": 1.5},
        latency_sensitive=True,
        long_kernels=False,
    )


def test_absent_fields_state_nothing() -> None:
    found = parameters()
    assert found == GPUClaimParameters()
    assert all(getattr(found, name) is UNSET for name in found.__struct_fields__)


@pytest.mark.parametrize("name", EVERY_FIELD)
def test_null_states_the_default(name: str) -> None:
    found = parameters(**{name: None})
    assert [getattr(found, field) for field in found.__struct_fields__].count(None) == 1
    assert lower(found, class_name="gpu.resource.admin", object_name=OBJECT) == lower(
        parameters(), class_name="gpu.resource.admin", object_name=OBJECT
    )


def test_empty_mps_states_nothing() -> None:
    assert parameters(mps={}).mps == MpsParameters()


@pytest.mark.parametrize(
    "profile", ["3g.40GB", "1G.5gb", "1g.10gb+me", "2g.48gb+GFX", "1g.24gb-me", "1c.3g.40gb"]
)
def test_mig_profiles_are_lower_case(profile: str) -> None:
    assert parameters(migProfile=profile).mig_profile == profile.lower()


@pytest.mark.parametrize(
    ("fields", "path", "text"),
    [
        ({"memoryGB": "80"}, "memoryGB", 'must be an integer from 1 to 100000 (GB per GPU), not "80"'),
        ({"memoryGB": 0}, "memoryGB", "not 0"),
        ({"memoryGB": -1}, "memoryGB", "not -1"),
        ({"memoryGB": 100_001}, "memoryGB", "not 100001"),
        ({"memoryGB": 10**30}, "memoryGB", "not 1000000000000000000000000000000"),
        ({"memoryGB": 80.5}, "memoryGB", "not 80.5"),
        ({"memoryGB": True}, "memoryGB", "not true"),
        ({"memoryGB": {}}, "memoryGB", "not an object"),
        ({"memoryGB": [80]}, "memoryGB", "not a list"),
        (
            {"gpuType": ""},
            "gpuType",
            'must be a text of 1 to 64 characters, such as H100 or H100-80GB, not ""',
        ),
        ({"gpuType": 100}, "gpuType", "not 100"),
        ({"gpuType": "x" * 65}, "gpuType", "…"),
        ({"nvLinkPeers": 0}, "nvLinkPeers", "must be an integer from 1 to 72"),
        ({"nvLinkPeers": 73}, "nvLinkPeers", "not 73"),
        ({"nvLinkPeers": "8"}, "nvLinkPeers", 'not "8"'),
        ({"migProfile": "3g"}, "migProfile", "must be a MIG profile, such as 3g.40gb"),
        ({"migProfile": "3g.40gb "}, "migProfile", "must be a MIG profile"),
        ({"migProfile": 3}, "migProfile", "not 3"),
        ({"shPolicy": "none"}, "shPolicy", 'must be exclusive, mps or timeSlice, not "none"'),
        ({"shPolicy": "timeSlicing"}, "shPolicy", "write timeSlice"),
        ({"shPolicy": "time-slice"}, "shPolicy", "write timeSlice"),
        ({"shPolicy": "Exclusive"}, "shPolicy", "write exclusive"),
        ({"shPolicy": "MPS"}, "shPolicy", "write mps"),
        ({"shPolicy": {}}, "shPolicy", "not an object"),
        ({"mps": 50}, "mps", "must be an object with threadPercent and pinnedMemory, not 50"),
        ({"mps": []}, "mps", "not a list"),
        ({"mps": {"threadPercent": 0}}, "mps.threadPercent", "must be an integer from 1 to 100, not 0"),
        ({"mps": {"threadPercent": 101}}, "mps.threadPercent", "not 101"),
        ({"mps": {"pinnedMemory": 16}}, "mps.pinnedMemory", "must be a quantity as text, such as 16Gi"),
        ({"mps": {"pinnedMemory": "16 G"}}, "mps.pinnedMemory", 'not "16 G"'),
        ({"replicas": 0}, "replicas", "must be an integer from 1 to 1000"),
        ({"replicas": 1001}, "replicas", "not 1001"),
        ({"alternatives": []}, "alternatives", "must be an object of at most 8 subrequests"),
        ({"alternatives": {"a": 0}}, "alternatives", "numbers above 0"),
        ({"alternatives": {"a": "1"}}, "alternatives", "numbers above 0"),
        ({"alternatives": {"A b": 1}}, "alternatives", "subrequests"),
        ({"alternatives": {f"a{i}": 1 for i in range(9)}}, "alternatives", "at most 8"),
        ({"latencySensitive": "yes"}, "latencySensitive", 'must be true or false, not "yes"'),
        ({"longKernels": 1}, "longKernels", "must be true or false, not 1"),
    ],
)
def test_wrong_values_are_named_with_what_would_be_right(
    fields: dict[str, Any], path: str, text: str
) -> None:
    error = refused(fields)
    assert error.field == f"{FIELD}.{path}"
    assert text in str(error)


@pytest.mark.parametrize(
    ("fields", "path", "text"),
    [
        ({"memoryGb": 80}, "memoryGb", "did you mean memoryGB?"),
        ({"memory": 80}, "memory", "did you mean memoryGB?"),
        ({"gputype": "H100"}, "gputype", "did you mean gpuType?"),
        ({"nvlinkPeers": 2}, "nvlinkPeers", "did you mean nvLinkPeers?"),
        ({"sharingPolicy": "mps"}, "sharingPolicy", "did you mean shPolicy?"),
        ({"zzz": 1}, "zzz", "the fields are memoryGB, gpuType, nvLinkPeers"),
        ({"": 1}, "", "is not a field of GPUClaimParameters"),
        ({"a` - at `$.mps": 1}, "a` - at `$.mps", "is not a field of GPUClaimParameters"),
        ({"mps": {"threads": 1}}, "mps.threads", "is not a field of GPUClaimParameters.mps; did you mean"),
        ({"x" * 5_000: 1}, "x" * 63 + "…", "the fields are"),
    ],
)
def test_unknown_fields_are_named_with_a_guess(fields: dict[str, Any], path: str, text: str) -> None:
    error = refused(fields)
    assert error.field == f"{FIELD}.{path}".removesuffix(".")
    assert text in str(error)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", "are not valid JSON"),
        (b"{", "are not valid JSON"),
        (b"\xff\xfe", "are not valid JSON"),
        (b'{"kind": "\xff"}', "are not valid JSON"),
        (b"{} {}", "are not valid JSON"),
        (b"null", "must be an object of kind GPUClaimParameters, not null"),
        (b"[]", "must be an object of kind GPUClaimParameters, not a list"),
        (b'"text"', 'not "text"'),
        (b"1", "not 1"),
        (b"[" * 9_000, "are nested too deeply"),
        (b'{"a":' * 2_000, "are nested too deeply"),
        (b" " * 10_241, "are longer than 10240 bytes"),
        (b"{}", ".apiVersion: is missing"),
        (b'{"apiVersion": null, "kind": null}', ".apiVersion: is missing"),
        (b'{"apiVersion": {}, "kind": 1}', ".apiVersion: is an object"),
        (b'{"apiVersion": "gpu.resource.admin/v1alpha1"}', ".kind: is missing"),
        (
            b'{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}',
            '.apiVersion: is "resource.nvidia.com/v1beta1"; parameters for gpu.resource.admin have',
        ),
        (
            b'{"apiVersion": "v1", "kind": "Gpu"}',
            "v1alpha1 and kind GPUClaimParameters; set apiVersion: gpu.resource.admin/v1alpha1",
        ),
        (b'{"apiVersion": "gpu.resource.admin/v1alpha1", "kind": "Gpu"}', "set kind: GPUClaimParameters"),
    ],
)
def test_what_is_no_such_object(raw: bytes, text: str) -> None:
    assert text in str(refused(raw))


def test_later_parameters_override_field_by_field() -> None:
    first = parameters(memoryGB=40, gpuType="A100", mps={"threadPercent": 50, "pinnedMemory": "8Gi"})
    second = parameters(gpuType="H100", mps={"threadPercent": 25}, alternatives={"a": 1})
    third = parameters(gpuType=None, alternatives={"b": 2})
    assert merge(first, second) == parameters(
        memoryGB=40, gpuType="H100", mps={"threadPercent": 25, "pinnedMemory": "8Gi"}, alternatives={"a": 1}
    )
    assert merge(first, second, third).gpu_type is None
    assert merge(first, second, third).alternatives == {"b": 2.0}
    assert merge(first, parameters(mps=None)).mps is None
    assert merge(parameters(mps=None), second).mps == second.mps
    assert merge() == parameters()


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=9), values, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from([*EVERY_FIELD, "apiVersion", "kind", "threadPercent", "pinnedMemory", "memory"])
MUTATED = st.builds(
    lambda kept, changed: {**HEAD, **{name: EVERY_FIELD[name] for name in kept}, **changed},
    st.sets(st.sampled_from(sorted(EVERY_FIELD))),
    st.dictionaries(NAMES | st.text(max_size=5), JSON | st.dictionaries(NAMES, JSON, max_size=2), max_size=3),
)
PATIENT = settings(max_examples=250, suppress_health_check=[HealthCheck.too_slow])


@given(MUTATED)
@PATIENT
def test_any_object_is_decoded_or_refused(document: dict[str, Any]) -> None:
    _decode_and_lower(json.dumps(document).encode())


@given(st.binary(max_size=60) | st.text(alphabet='{}[]":,tfn01e-\\u ', max_size=40).map(str.encode))
@PATIENT
def test_any_bytes_are_decoded_or_refused(raw: bytes) -> None:
    _decode_and_lower(raw)


@given(MUTATED, st.integers(0, 400), st.binary(min_size=1, max_size=2))
@PATIENT
def test_any_damage_is_decoded_or_refused(document: dict[str, Any], position: int, damage: bytes) -> None:
    raw = json.dumps(document).encode()
    _decode_and_lower(raw[:position] + damage + raw[position + len(damage) :])


@given(st.lists(MUTATED, max_size=3))
@settings(PATIENT, max_examples=80)
def test_merging_is_associative_and_keeps_what_is_stated_last(documents: list[dict[str, Any]]) -> None:
    found = [p for p in (_decode(json.dumps(document).encode()) for document in documents) if p is not None]
    merged = merge(*found)
    assert merge(merge(*found[:1]), merge(*found[1:])) == merged
    for name in set(merged.__struct_fields__) - {"mps"}:
        stated = [value for p in found if (value := getattr(p, name)) is not UNSET]
        assert getattr(merged, name) == (stated[-1] if stated else UNSET)


def _decode(raw: bytes) -> GPUClaimParameters | None:
    try:
        return decode(raw)
    except InvalidObjectError as error:
        message = str(error)
    assert message.startswith(OBJECT)
    return None


def _decode_and_lower(raw: bytes) -> None:
    found = _decode(raw)
    if found is None:
        return
    for class_name in ("gpu.resource.admin", "mps.gpu.resource.admin", "own"):
        try:
            demand = lower(found, class_name=class_name, object_name=OBJECT)
        except InvalidObjectError as error:
            message = str(error)
            assert message.startswith(OBJECT)
        else:
            assert 1 <= demand.linked_set_size <= 72
            hash(demand)
