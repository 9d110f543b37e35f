"""GPUClaimParameters: every field with every value, for every device class."""

import json
from typing import Any

import pytest
from tests.unit.bad_input.hostile import VALUES, Path, changed, deep, wire_paths, without

from tangram import DRIVER_NAME
from tangram.api import DeviceFacts, GPUClaimParameters, decode_parameters, lower, merge
from tangram.api.lowering import CLASS_SHARING
from tangram.base.errors import InvalidObjectError

OBJECT, FIELD = "ResourceClaim ns/c", "spec.devices.config[0].opaque.parameters"
HEAD = {"apiVersion": f"{DRIVER_NAME}/v1alpha1", "kind": "GPUClaimParameters"}
FULL: dict[str, Any] = {
    **HEAD,
    "memoryGB": 40,
    "gpuType": "A100-80GB",
    "nvLinkPeers": 2,
    "migProfile": "3g.40gb",
    "shPolicy": "mps",
    "mps": {"threadPercent": 50, "pinnedMemory": "16Gi"},
    "replicas": 4,
    "alternatives": {"big": 1.5},
    "latencySensitive": True,
    "longKernels": True,
}
PATHS = [("apiVersion",), ("kind",), *wire_paths(GPUClaimParameters)]
FACTS = DeviceFacts(memory_bytes=80 * 2**30, nominal_gb=80, gpu_type="A100", product_name="NVIDIA A100-80GB")


def use(raw: bytes) -> None:
    """As controller and node use them; only an InvalidObjectError that says it all may come out."""
    try:
        parameters = merge(decode_parameters(raw, object_name=OBJECT, field=FIELD))
        for class_name in (*CLASS_SHARING, "class-of-an-administrator"):
            try:
                lower(parameters, class_name=class_name, object_name=OBJECT).accepts(FACTS)
            except InvalidObjectError as error:
                complete(error, f"{OBJECT}: ")
    except InvalidObjectError as error:
        complete(error, f"{OBJECT}: {FIELD}")


def complete(error: InvalidObjectError, where: str) -> None:
    assert error.cause.startswith(where)
    assert error.field, str(error)
    # An event holds 1,024 bytes, of which the names of object and field take a part.
    assert len(str(error)) < 700
    assert str(error).isprintable()


def test_the_full_object_has_every_field() -> None:
    assert set(FULL) - set(HEAD) == {path[0] for path in wire_paths(GPUClaimParameters)}
    decode_parameters(json.dumps(FULL).encode(), object_name=OBJECT, field=FIELD)


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_every_field_with_every_value(path: Path) -> None:
    for base in (FULL, HEAD):
        use(json.dumps(without(base, path)).encode())
        for value in (*VALUES, deep(50)):
            use(json.dumps(changed(base, path, value)).encode())


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_a_wrong_field_is_named(path: Path) -> None:
    """A value that fits no field at all."""
    with pytest.raises(InvalidObjectError) as caught:
        decode_parameters(
            json.dumps(changed(FULL, path, [{"a": []}])).encode(), object_name=OBJECT, field=FIELD
        )
    assert str(path[0]) in caught.value.field


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"", "not valid JSON"),
        (b"null", "must be an object"),
        (b"\xff", "not valid JSON"),
        (b'{"a": "\xff"}', "not valid JSON"),
        (b'{"a": "\\ud800"}', "not valid JSON"),
        (b'{"memoryGB": NaN}', "not valid JSON"),
        (b'{"memoryGB": Infinity}', "not valid JSON"),
        (b'{"memoryGB": 1e999}', "not valid JSON"),
        (b"[" * 10_000, "nested too deeply"),
        (b'{"a":' * 2_000, "nested too deeply"),
        (b" " * 20_000, "longer than 10240 bytes"),
        (json.dumps(HEAD)[:-1].encode() + b', "memoryGB": 1, "memoryGB": 2}', "memoryGB: stands twice"),
        (json.dumps(HEAD)[:-1].encode() + b', "mps": {"a": 1, "a": 2}}', "a: stands twice"),
        (json.dumps({**HEAD, "mem\u043eryGB": 1}).encode(), "did you mean memoryGB?"),
        (json.dumps({**HEAD, "gpuType": "\u0410100"}, ensure_ascii=False).encode(), ""),
        (json.dumps({**HEAD, "migProfile": "3g.40gb\n"}).encode(), "must be a MIG profile"),
        (json.dumps({**HEAD, "migProfile": "1g.10gb+\u212a"}).encode(), "must be a MIG profile"),
        (json.dumps({**HEAD, "mps": {"pinnedMemory": "\uff11\uff16Gi"}}).encode(), "must be a quantity"),
    ],
)
def test_texts_that_are_no_parameters(raw: bytes, problem: str) -> None:
    use(raw)
    if problem:
        with pytest.raises(InvalidObjectError) as caught:
            decode_parameters(raw, object_name=OBJECT, field=FIELD)
        assert problem in str(caught.value)
