import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.base.errors import InvalidError
from tangram.testing.apiserver.patches import json_patch, merge_patch, strategic_patch

DOCUMENT = {"a": {"b": 1, "c": [1, 2]}, "d": "x"}


# RFC 7386, appendix A.
@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch(target: Any, patch: Any, result: Any) -> None:
    before = copy.deepcopy(target)
    assert merge_patch(target, patch) == result
    assert target == before


@pytest.mark.parametrize(
    ("operations", "result"),
    [
        ([{"op": "add", "path": "/e", "value": 1}], {**DOCUMENT, "e": 1}),
        ([{"op": "add", "path": "/a/c/-", "value": 3}], {"a": {"b": 1, "c": [1, 2, 3]}, "d": "x"}),
        ([{"op": "add", "path": "/a/c/0", "value": 0}], {"a": {"b": 1, "c": [0, 1, 2]}, "d": "x"}),
        ([{"op": "replace", "path": "/a/c/1", "value": 9}], {"a": {"b": 1, "c": [1, 9]}, "d": "x"}),
        ([{"op": "remove", "path": "/a"}], {"d": "x"}),
        ([{"op": "move", "from": "/d", "path": "/a/d"}], {"a": {"b": 1, "c": [1, 2], "d": "x"}}),
        ([{"op": "copy", "from": "/a/b", "path": "/n"}], {**DOCUMENT, "n": 1}),
        ([{"op": "test", "path": "/d", "value": "x"}], DOCUMENT),
        ([{"op": "add", "path": "/x~1y~0z", "value": 1}], {**DOCUMENT, "x/y~z": 1}),
        ([{"op": "replace", "path": "", "value": {}}], {}),
        ([{"op": "replace", "path": "/new", "value": 1}], {**DOCUMENT, "new": 1}),
    ],
)
def test_json_patch(operations: Any, result: Any) -> None:
    before = copy.deepcopy(DOCUMENT)
    assert json_patch(DOCUMENT, operations) == result
    assert before == DOCUMENT


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/d", "value": "y"},
        {"op": "remove", "path": "/none"},
        {"op": "add", "path": "/a/c/7", "value": 1},
        {"op": "add", "path": "no-slash", "value": 1},
        {"op": "unknown", "path": "/d", "value": 1},
        {"op": "add", "path": "/d"},
    ],
)
def test_json_patch_that_does_not_apply(operation: Any) -> None:
    with pytest.raises(InvalidError):
        json_patch(DOCUMENT, [operation])


def test_strategic_patch_merges_lists_by_their_key() -> None:
    target = {"status": {"reservedFor": [{"uid": "1", "name": "a"}, {"uid": "2", "name": "b"}]}}
    patch = {
        "status": {"reservedFor": [{"uid": "2", "name": "B"}, {"uid": "3"}, {"$patch": "delete", "uid": "1"}]}
    }
    assert strategic_patch("ResourceClaim", target, patch) == {
        "status": {"reservedFor": [{"uid": "2", "name": "B"}, {"uid": "3"}]}
    }


def test_strategic_patch_directives() -> None:
    target = {"labels": {"x": "1", "y": "2"}, "finalizers": ["f", "g"], "managedFields": [1]}

    def patched(patch: Any) -> Any:
        return strategic_patch("ObjectMeta", target, patch)

    assert patched({"labels": {"$patch": "replace", "z": "3"}})["labels"] == {"z": "3"}
    assert patched({"labels": {"x": None}})["labels"] == {"y": "2"}
    assert patched({"finalizers": ["h", "f"]})["finalizers"] == ["h", "f", "g"]
    assert patched({"$deleteFromPrimitiveList/finalizers": ["f"]})["finalizers"] == ["g"]
    assert patched({"$setElementOrder/finalizers": ["g", "f"]})["finalizers"] == ["g", "f"]
    assert patched({"managedFields": [2]})["managedFields"] == [2]


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=10,
)


@given(VALUES, VALUES)
def test_merge_patch_is_idempotent(target: Any, patch: Any) -> None:
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once
