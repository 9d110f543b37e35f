"""What `tangram controller run` can be told."""

from typing import Annotated

from msgspec import Meta

from tangram.base.settings import CommandSettings


class ControllerSettings(CommandSettings, frozen=True, kw_only=True, rename="camel"):
    """Settings of the controller."""

    namespace: Annotated[str, Meta(description="namespace of the Lease", min_length=1)] = "tangram-system"
    lease_name: Annotated[
        str, Meta(description="Lease that decides which replica is active", min_length=1)
    ] = "tangram-controller"
    identity: Annotated[
        str,
        Meta(
            description="name of this replica in the Lease, unique among replicas; empty: host name and a "
            "random suffix"
        ),
    ] = ""
    exclusion_initial_s: Annotated[
        float,
        Meta(
            description="how long a node is not offered again to a pod after kube-scheduler took an "
            "allocation there back; doubles with each time",
            gt=0,
            le=3600,
            extra={"unit": "seconds"},
        ),
    ] = 30.0
    exclusion_maximum_s: Annotated[
        float, Meta(description="upper bound of that time", gt=0, le=86400, extra={"unit": "seconds"})
    ] = 600.0
    idle_claim_ttl_s: Annotated[
        float,
        Meta(
            description="how long a claim stays allocated that no pod uses and none ever reserved",
            ge=0,
            le=86400,
            extra={"unit": "seconds"},
        ),
    ] = 60.0
