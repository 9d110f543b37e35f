"""Allocation results as commands print them."""

from typing import Any

import msgspec

from tangram.kube.objects import DeviceAllocationResult


def device_text(result: DeviceAllocationResult) -> str:
    """Which device a request got."""
    return f"{result.request}: {result.device} of pool {result.pool}, driver {result.driver}"


def as_json(body: Any, *, indent: int = 0) -> str:
    """A body with structs in it as JSON, on one line unless indented."""
    encoded = msgspec.json.encode(body)
    return (msgspec.json.format(encoded, indent=indent) if indent else encoded).decode()


def as_yaml(body: Any) -> str:
    """The same as YAML."""
    import yaml  # noqa: PLC0415 - the other forms do without

    text: str = yaml.safe_dump(msgspec.json.decode(as_json(body)), sort_keys=False, width=110)
    return text
