"""The settings of `tangram controller run`."""

from typing import Annotated

from msgspec import Meta

from tangram.base.settings import CommandSettings

_DNS_LABEL = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"
_DNS_SUBDOMAIN = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"


class ControllerSettings(CommandSettings, frozen=True, kw_only=True):
    """What the controller can be told."""

    namespace: Annotated[
        str,
        Meta(
            description="namespace of the Lease that elects the active controller",
            max_length=63,
            pattern=_DNS_LABEL,
            extra={"expected": "a namespace name"},
        ),
    ] = "tangram-system"
    lease_name: Annotated[
        str,
        Meta(
            description="name of that Lease",
            max_length=253,
            pattern=_DNS_SUBDOMAIN,
            extra={"expected": "an object name"},
        ),
    ] = "tangram-controller"
    identity: Annotated[
        str,
        Meta(
            description="this process in the Lease, unique among the replicas; empty: the host name",
            max_length=128,
        ),
    ] = ""
