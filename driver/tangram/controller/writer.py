"""Writing an allocation: finalizer first, then status, each a patch with the version it was decided on.

A merge patch with a stale `metadata.resourceVersion` answers 409: a compare-and-swap without PUT, so that
nothing that others wrote into the object is lost. The finalizer is Kubernetes' own: with it the claim
controller frees the claim when its pods are gone.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from tangram.kube.client import decode
from tangram.kube.objects import ResourceClaim
from tangram.kube.resources import RESOURCE_CLAIMS, Resource

FINALIZER = "resource.kubernetes.io/delete-protection"


class Patcher(Protocol):
    """The part of the API client that is needed here."""

    async def patch(
        self,
        resource: Resource,
        patch: Mapping[str, Any],
        *,
        name: str,
        namespace: str = "",
        subresource: str = "",
    ) -> bytes:
        """A merge patch; returns the object as stored."""
        ...


async def add_finalizer(client: Patcher, claim: ResourceClaim) -> ResourceClaim:
    """The claim with the finalizer, written if it was missing. Raises ConflictError if the claim changed."""
    finalizers = claim.metadata.finalizers or []
    if FINALIZER in finalizers:
        return claim
    return await _patch(client, claim, {"metadata": {"finalizers": [*finalizers, FINALIZER]}})


async def write_status(client: Patcher, claim: ResourceClaim, status: Mapping[str, Any]) -> ResourceClaim:
    """The claim with these fields of its status set (None clears one). Raises ConflictError if it changed."""
    return await _patch(client, claim, {"status": status}, subresource="status")


def deallocation() -> dict[str, None]:
    """The status that frees a claim: both fields in one write, as validation demands.

    `devices` of a freed claim the API server removes itself; changing them is for the node's plugin alone.
    """
    return {"allocation": None, "reservedFor": None}


async def _patch(
    client: Patcher, claim: ResourceClaim, change: dict[str, Any], *, subresource: str = ""
) -> ResourceClaim:
    metadata = {**change.get("metadata", {}), "resourceVersion": claim.metadata.resource_version}
    answer = await client.patch(
        RESOURCE_CLAIMS,
        {**change, "metadata": metadata},
        name=claim.metadata.name,
        namespace=claim.metadata.namespace,
        subresource=subresource,
    )
    return decode(answer, ResourceClaim)
