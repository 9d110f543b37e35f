"""What a request's body becomes: an object of its kind, decoded by the schema."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml

from tangram.base.errors import ApiError
from tangram.kube.decoding import ObjectKey
from tangram.kube.resources import Resource
from tangram.testing.apiserver import protobuf
from tangram.testing.apiserver.answers import bad_patch, bad_request, unsupported_media_type
from tangram.testing.apiserver.decoding import DecodeError, Decoder, duplicate_fields
from tangram.testing.apiserver.options import FieldValidation
from tangram.testing.apiserver.store import Object

_JSON = ("application/json", "application/octet-stream", "")


def parse(data: bytes, *, content_type: str, duplicates: list[str]) -> Any:
    """The JSON of a body, or YAML, or protobuf; `duplicates` gathers keys given twice. 400 and 415."""
    if content_type == protobuf.MEDIA_TYPE:
        return protobuf.parse(data)
    try:
        if content_type.endswith("yaml"):
            return yaml.safe_load(data)
        if content_type not in _JSON and not content_type.endswith("+json"):
            raise unsupported_media_type(
                f"the body of the request was in an unknown format - accepted media types include: "
                f"application/json, application/yaml ({content_type})"
            )
        return json.loads(data, object_pairs_hook=lambda pairs: duplicate_fields(pairs, duplicates))
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise bad_request(
            f"the object provided is unrecognized: couldn't get version/kind; json parse error: {error}"
        ) from error


def decode(
    resource: Resource,
    body: Any,
    *,
    validation: FieldValidation = "Ignore",
    warn: Callable[[str], None] = lambda _: None,
    duplicates: list[str] | None = None,
) -> Object:
    """The body of a POST or PUT; 400 for what is no such object, or has unknown fields under Strict."""
    if not isinstance(body, Mapping | None):
        raise bad_request(
            f"the object provided is unrecognized (must be of type {resource.kind}): "
            f"couldn't get version/kind; json parse error: not an object"
        )
    body = dict(body or {})
    where = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
    check_kind(resource, body)
    decoder = Decoder()
    try:
        decoded = decoder.struct(resource.kind, {**body, **_kind(resource)})
    except DecodeError as error:
        raise bad_request(f"{where}: {error}") from error
    told = [f'duplicate field "{name}"' for name in duplicates or ()]
    told += [f'unknown field "{name}"' for name in decoder.unknown]
    if told and validation == "Strict":
        raise bad_request(f"{where}: strict decoding error: {', '.join(told)}")
    if validation == "Warn":
        for each in told:
            warn(each)
    return decoded


def decode_patched(
    resource: Resource, patched: Any, *, validation: FieldValidation, warn: Callable[[str], None]
) -> Object:
    """What a patch makes of an object; 422 in place of `decode`'s 400."""
    if not isinstance(patched, dict):
        raise bad_patch("the patched object is no object")
    try:
        check_kind(resource, patched)
    except ApiError as error:
        raise bad_patch(error.cause) from error
    decoder = Decoder()
    try:
        decoded = decoder.struct(resource.kind, {**patched, **_kind(resource)})
    except DecodeError as error:
        raise bad_patch(str(error)) from error
    told = [f'unknown field "{name}"' for name in decoder.unknown]
    if told and validation == "Strict":
        raise bad_patch(f"strict decoding error: {', '.join(told)}")
    if validation == "Warn":
        for each in told:
            warn(each)
    return decoded


def check_kind(resource: Resource, body: Mapping[str, Any]) -> None:
    """That `apiVersion` and `kind` are those of the URL, as far as they are given."""
    version, kind = body.get("apiVersion") or resource.api_version, body.get("kind") or resource.kind
    if (version, kind) != (resource.api_version, resource.kind):
        raise bad_request(
            f"{kind} in version {version!r} cannot be handled as a {resource.kind}: "
            f"{resource.api_version}, Kind={resource.kind} is that of the URL"
        )


def check_place(key: ObjectKey, metadata: Mapping[str, Any]) -> None:
    """That name and namespace are those of the URL."""
    name = metadata.get("name")
    if not name:
        why = f"the name of the object ({key.name} based on URL) was undeterminable: name must be provided"
        raise bad_request(why)
    if name != key.name:
        raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({key.name})")
    if metadata.get("namespace", key.namespace) != key.namespace:
        raise other_namespace()


def other_namespace() -> ApiError:
    """400."""
    return bad_request(
        "the namespace of the provided object does not match the namespace sent on the request"
    )


def _kind(resource: Resource) -> Object:
    return {"apiVersion": resource.api_version, "kind": resource.kind}


@contextlib.contextmanager
def patching() -> Iterator[None]:
    """Applying a patch to what it does not fit is a bad patch."""
    try:
        yield
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        raise bad_patch(f"{error!r}") from error
