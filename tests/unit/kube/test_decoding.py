import contextlib
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.base.errors import InvalidObjectError
from tangram.kube.decoding import ObjectKey, decode, identify
from tangram.kube.objects import OpaqueConfiguration, Pod, ResourceClaim, ResourceSlice

SLICE = {
    "metadata": {"name": "s", "labels": None, "ownerReferences": None, "managedFields": [{"x": 1}]},
    "spec": {"driver": "d", "pool": {"name": "p"}, "devices": None, "sharedCounters": [{"unknown": []}]},
}


def test_null_lists_and_maps_and_unknown_fields_are_fine() -> None:
    decoded = decode(msgspec.json.encode(SLICE), ResourceSlice)
    assert decoded.metadata.labels is None
    assert decoded.spec.devices is None


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'"spec":{"nodeName":5}', "spec.nodeName"),
        (b'"spec":{"tolerations":{}}', "spec.tolerations"),
        (b'"spec":{"containers":[{"name":1}]}', "spec.containers[0].name"),
        (b'"spec":{"nodeSelector":{"a":null}}', "spec.nodeSelector[...]"),
        (b'"spec":null', "spec"),
    ],
)
def test_error_names_object_and_field(body: bytes, field: str) -> None:
    with pytest.raises(InvalidObjectError) as caught:
        decode(b'{"metadata":{"name":"x","namespace":"n"},' + body + b"}", Pod)
    assert caught.value.object_name == "Pod n/x"
    assert caught.value.field == field


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b'{"metadata":null}',
        b'{"metadata":{"name":5}}',
        b'{"metadata":{"name":"\xff"}}',
        b'{"metadata":{"name":"x"},"spec":{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
        b'{"metadata":{"name":"x","generation":1e400}}',
        b'{"metadata":{"name":"x"}} trailing',
    ],
)
def test_hostile_input_is_one_clear_error(body: bytes) -> None:
    with pytest.raises(InvalidObjectError) as caught:
        decode(body, Pod)
    assert len(str(caught.value)) < 500


def test_name_in_the_error_is_bounded() -> None:
    body = msgspec.json.encode({"metadata": {"name": "x" * 100_000}, "spec": 1})
    with pytest.raises(InvalidObjectError) as caught:
        decode(body, Pod)
    assert len(str(caught.value)) < 1000


def test_identify() -> None:
    found = identify(b'{"kind":"X","metadata":{"name":"a","namespace":"b","uid":"c","resourceVersion":"7"}}')
    assert found.metadata.key == ObjectKey("b", "a")
    assert (found.metadata.uid, found.metadata.resource_version) == ("c", "7")
    assert str(found.metadata.key) == "b/a"


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["metadata", "spec", "status", "name", "devices", "requests"]), inner
        )
    ),
    max_leaves=20,
)


@given(JSON)
def test_any_json_decodes_or_is_refused(value: Any) -> None:
    with contextlib.suppress(InvalidObjectError):
        decode(msgspec.json.encode(value), ResourceClaim)


@given(st.binary(max_size=60))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    with contextlib.suppress(InvalidObjectError):
        decode(data, ResourceClaim)


def test_opaque_parameters_do_not_hold_the_page_they_came_in() -> None:
    data = b'{"driver":"d","parameters":{"a":1},"padding":"' + b"x" * 1000 + b'"}'
    before = sys.getrefcount(data)
    decoded = decode(data, OpaqueConfiguration)
    assert bytes(decoded.parameters) == b'{"a":1}'
    assert sys.getrefcount(data) == before
