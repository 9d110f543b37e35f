"""The types of the API, as Kubernetes 1.36 publishes them (`schema.json`, written by the conformance test).

A struct is {field: {`type`, `required`, `default`, `keys` and `set` (how a list merges on apply), `atomic`,
`merge` (the key of a strategic merge, "" for plain values), `enum`}}. A type is `string`, `int`, `bool`,
`number`, `bytes`, `time`, `microtime`, `quantity`, `intorstring`, `any`, the name of a struct, `[type]` for
a list or `{type}` for a map.
"""

import functools
from collections.abc import Mapping
from pathlib import Path

import msgspec


class Field(msgspec.Struct, frozen=True):
    """What is known of a field."""

    type: str
    required: bool = False
    default: object = msgspec.UNSET
    keys: tuple[str, ...] = ()
    set: bool = False
    atomic: bool = False
    merge: str | None = None
    enum: tuple[str, ...] = ()

    @property
    def item(self) -> str:
        """The type of an element of a list or map."""
        return self.type[1:-1]

    @property
    def is_list(self) -> bool:
        """Whether it is a list."""
        return self.type.startswith("[")

    @property
    def is_map(self) -> bool:
        """Whether it is a map with keys of the user's."""
        return self.type.startswith("{")


Struct = Mapping[str, Field]

# Go's encoder writes the zero value of these though OpenAPI calls them optional.
_ALWAYS_WRITTEN: Mapping[str, Mapping[str, object]] = {
    "DeviceClaim": {"requests": None},
    "DeviceCapacity": {"value": "0"},
    "Counter": {"value": "0"},
    "ContainerStateRunning": {"startedAt": None},
    "AllocatedDeviceStatus": {"conditions": None},
    "Event": {"deprecatedFirstTimestamp": None, "deprecatedLastTimestamp": None, "eventTime": None},
    "PodCondition": {"lastProbeTime": None, "lastTransitionTime": None},
    "NodeCondition": {"lastHeartbeatTime": None, "lastTransitionTime": None},
}


@functools.cache
def structs() -> Mapping[str, Struct]:
    """All structs by name."""
    text = Path(__file__).with_name("schema.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, dict[str, Field]])


@functools.cache
def written_defaults(name: str) -> Mapping[str, object]:
    """The fields of a struct that are written even where they were not given, with what is written."""
    found: dict[str, object] = {}
    for field, about in structs()[name].items():
        if about.default == {} or (about.required and about.default is not msgspec.UNSET):
            found[field] = about.default
    return {**found, **_ALWAYS_WRITTEN.get(name, {})}
