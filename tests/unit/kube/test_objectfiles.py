"""Objects from files: every form kubectl reads, and the place of everything that is wrong."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.base.errors import InvalidObjectError
from tangram.kube.objectfiles import parse_objects, read_objects
from tangram.kube.objects import ResourceClaim

_CLAIM = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "a"}}
_NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
_LIST = {"apiVersion": "v1", "kind": "List", "items": [_CLAIM, _NODE]}


def _text(*objects: object) -> bytes:
    return b"\n".join(json.dumps(each).encode() for each in objects)


@pytest.mark.parametrize(
    ("data", "places"),
    [
        (_text(_CLAIM), ["f"]),
        (_text(_LIST), ["f, items[0]", "f, items[1]"]),
        (_text({**_LIST, "kind": "ResourceClaimList"}), ["f, items[0]", "f, items[1]"]),
        (_text(_CLAIM, _NODE), ["f, document 1", "f, document 2"]),
        (_text(_LIST, _NODE), ["f, document 1, items[0]", "f, document 1, items[1]", "f, document 2"]),
        (
            b"# a comment\napiVersion: v1\nkind: Node\n---\n---\nkind: Node\napiVersion: v1\n",
            ["f, document 1", "f, document 3"],
        ),
        (b"---\n".join([_text(_CLAIM) + b"\n", _text(_NODE) + b"\n"]), ["f, document 1", "f, document 2"]),
        (_text(_CLAIM) + b"\n---\napiVersion: v1\nkind: Node\n", ["f, document 1", "f, document 2"]),
        (b"{apiVersion: v1, kind: Node}\n", ["f"]),
    ],
)
def test_every_object_is_found_with_its_place(data: bytes, places: list[str]) -> None:
    assert [found.where for found in parse_objects(data, name="f")] == places


def test_text_of_yaml_stays_text() -> None:
    data = b"apiVersion: v1\nkind: Node\nmetadata: {name: n, labels: {a: 2026-01-01, b: no, c: 1.50}}\n"
    (found,) = parse_objects(data, name="f")
    assert json.loads(found.raw)["metadata"]["labels"] == {"a": "2026-01-01", "b": "no", "c": "1.50"}


def test_items_of_a_list_of_one_kind_need_not_say_it() -> None:
    """So the API server lists them: `kubectl get --raw /api/v1/nodes`."""
    bare = {"metadata": {"name": "n"}}
    listed = _text({"apiVersion": "v1", "kind": "NodeList", "items": [bare, _NODE, {**bare, "kind": "Pod"}]})
    found = parse_objects(listed, name="f")
    assert [(each.api_version, each.kind) for each in found] == [
        ("v1", "Node"),
        ("v1", "Node"),
        ("v1", "Pod"),
    ]


def test_aliases_stand_for_what_they_name() -> None:
    data = (
        b"apiVersion: v1\nkind: List\nitems:\n"
        b"- {apiVersion: v1, kind: &kind Node, metadata: &meta {name: n, labels: &labels {a: b}}}\n"
        b"- {apiVersion: v1, kind: *kind, metadata: {labels: *labels, name: m}}\n"
    )
    first, second = (json.loads(found.raw) for found in parse_objects(data, name="f"))
    assert first == {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {"a": "b"}}}
    assert second == {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "m", "labels": {"a": "b"}}}


def test_aliases_of_aliases_end() -> None:
    data = b"a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    for step in range(30):
        data += f"a{step + 1}: &a{step + 1} [{', '.join(10 * [f'*a{step}'])}]\n".encode()
    with pytest.raises(InvalidObjectError, match="line 6: aliases that stand for too much"):
        parse_objects(data, name="f")
    long = b"x" * 1_000_000
    with pytest.raises(InvalidObjectError, match="line 2: aliases that stand for too much"):
        parse_objects(b"a: &a " + long + b"\nb: [" + b"*a, " * 200 + b"]", name="f")
    with pytest.raises(InvalidObjectError, match="line 4: aliases that stand for too much"):
        parse_objects(b"? &a " + long + b"\n: 1\nb: &b {*a : 1}\nc: [" + b"*b, " * 200 + b"]", name="f")


def test_parameters_of_drivers_have_the_types_that_kubernetes_reads() -> None:
    values = b"[1.5, -1e3, .5, yes, Off, True, 2026-01-01, '1.5', 1.2.3, .nan]"
    opaque = b"{driver: 1.50, parameters: {a: " + values + b"}}"
    data = b"{apiVersion: v1, kind: R, spec: {devices: {config: [{opaque: " + opaque + b"}]}}}"
    (found,) = parse_objects(data, name="f")
    got = json.loads(found.raw)["spec"]["devices"]["config"][0]["opaque"]
    expected = [1.5, -1000.0, 0.5, True, False, True, "2026-01-01", "1.5", "1.2.3", ".nan"]
    assert got == {"driver": "1.50", "parameters": {"a": expected}}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "f: has no object"),
        (b"---\n---\n", "f: has no object"),
        (b"[]", "f: is no Kubernetes object"),
        (b"hello", "f: is no Kubernetes object"),
        (b"{", "f: is not JSON"),
        (_text(_CLAIM) + b"}", "f: is not JSON"),
        (b"{" * 100_000, "f: is not JSON"),
        (b"[" * 100_000, "f: is not JSON: maximum recursion depth"),
        (b'{"a":' * 100_000, "f: is not JSON: maximum recursion depth"),
        (b'{"kind": "Node"}', "f: apiVersion: is missing"),
        (b"apiVersion: v1\n---\n- 1\n", "f, document 1: kind: is missing"),
        (b"kind: x\nb: *a\n", "line 2: the alias *a names nothing above it"),
        (b"kind: &a [*a]\n", "the alias *a names nothing above it"),
        (b"a: &a 5\nb: {*a : c}\n", "line 2: the key *a is not text"),
        (b"a: &a [b]\n*a : c\n", "line 2: the key *a is not text"),
        (b"a: &a {b: c}\nd: {<<: *a}\n", "line 2: merge keys (<<) are not read"),
        (b"a: &a " + b"[" * 40 + b"]" * 40 + b"\nb: " + b"[" * 40 + b"*a" + b"]" * 40, "nested deeper"),
        (_text({**_NODE, "x": 1}).replace(b"1", b"NaN"), "f: is not JSON"),
        (_text(_NODE, {**_NODE, "x": 1}).replace(b"1", b"NaN"), "f: is not JSON"),
        (_text(_NODE, {**_NODE, "x": 1}).replace(b"1", b"-Infinity"), "f: is not JSON"),
        (b"\xff\xfe", "is not UTF-8"),
        (_text({"apiVersion": "v1", "kind": "List", "items": [{"kind": "Node"}]}), "f, items[0]: apiVersion"),
    ],
)
def test_what_is_no_object_is_refused_with_its_place(data: bytes, message: str) -> None:
    with pytest.raises(InvalidObjectError) as caught:
        parse_objects(data, name="f")
    assert message in str(caught.value)
    assert caught.value.next_step


def test_lists_in_lists_end() -> None:
    nested: object = _CLAIM
    for _ in range(30):
        nested = {"apiVersion": "v1", "kind": "List", "items": [nested]}
    with pytest.raises(InvalidObjectError, match="too many Lists"):
        parse_objects(_text(nested), name="f")


def test_a_wrong_type_names_file_document_object_and_field() -> None:
    bad = {**_CLAIM, "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"count": "one"}}]}}}
    (_, found) = parse_objects(_text(_NODE, bad), name="f")
    with pytest.raises(InvalidObjectError) as caught:
        found.decode(ResourceClaim)
    assert "f, document 2: ResourceClaim a: spec.devices.requests[0].exactly.count: Expected" in str(
        caught.value
    )


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidObjectError, match=r"missing\.yaml: cannot be read: No such file"):
        read_objects(tmp_path / "missing.yaml")


@given(st.binary(max_size=200) | st.text(alphabet='{}[]":,-& *!|>\n aA01').map(str.encode))
def test_no_bytes_end_in_anything_but_objects_or_an_error(data: bytes) -> None:
    try:
        found = parse_objects(data, name="f")
    except InvalidObjectError:
        return
    assert all(each.kind for each in found)
