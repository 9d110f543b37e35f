"""What `tangram controller run` can be told."""

from typing import Annotated

from msgspec import Meta

from tangram.base.settings import DNS_LABEL, DNS_SUBDOMAIN, CommandSettings


class ControllerSettings(CommandSettings, frozen=True, kw_only=True, rename="camel"):
    """Settings of the controller."""

    namespace: Annotated[
        str,
        Meta(
            description="namespace of the Lease",
            pattern=DNS_LABEL,
            extra={"expected": "a namespace (up to 63 of a-z, 0-9 and '-', no '-' at the ends)"},
        ),
    ] = "tangram-system"
    lease_name: Annotated[
        str,
        Meta(
            description="Lease that decides which replica is active",
            max_length=253,
            pattern=DNS_SUBDOMAIN,
            extra={"expected": "a name (up to 253 of a-z, 0-9, '-' and '.', a letter or digit at the ends)"},
        ),
    ] = "tangram-controller"
    identity: Annotated[
        str,
        Meta(
            description="name of this replica in the Lease, unique among replicas; empty: host name and a "
            "random suffix",
            # An event names its reporting instance by it (events.k8s.io/v1: 128 bytes).
            pattern=r"\A([A-Za-z0-9]([-._A-Za-z0-9]{0,126}[A-Za-z0-9])?)?\Z",
            extra={"expected": "up to 128 letters, digits, '-', '.' and '_', a letter or digit at the ends"},
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
    unbound_timeout_s: Annotated[
        float,
        Meta(
            description="how long a pod that cannot be scheduled for another cause keeps devices that others "
            "wait for; if no scheduler says why it is not bound, at least 660",
            gt=0,
            le=86400,
            extra={"unit": "seconds"},
        ),
    ] = 60.0

    def contradiction(self) -> tuple[str, str] | None:
        """Without this, the first wait would be cut to the maximum without a word."""
        if self.exclusion_initial_s > self.exclusion_maximum_s:
            return "exclusionInitialS", "exclusionMaximumS"
        return None
