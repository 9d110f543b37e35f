"""Writing an allocation: finalizer first, then status, each a patch with the version it was decided on.

A merge patch with a stale `metadata.resourceVersion` answers 409: a compare-and-swap without PUT, so that
nothing that others wrote into the object is lost. The finalizer is Kubernetes' own: with it the claim
controller frees the claim when its pods are gone.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

from tangram.base.backoff import Backoff
from tangram.base.clock import Clock
from tangram.base.errors import ConflictError, InvalidObjectError, ServerError, UnreachableError
from tangram.kube.client import decode
from tangram.kube.objects import ResourceClaim
from tangram.kube.resources import RESOURCE_CLAIMS, Resource

T = TypeVar("T")

FINALIZER = "resource.kubernetes.io/delete-protection"
_SERVER_ERRORS = 4
"""Answers of a failing API server in a row after which a write counts as not done."""


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


async def certainly(request: Callable[[], Awaitable[T]], *, clock: Clock) -> T | None:
    """The answer to a request that is a compare-and-swap or a read, whatever happens to answers on the way.

    If an answer is lost, nobody knows whether the write was done, nor whether it will still be: it may be on
    its way. The same write is sent again until there is an answer. Either it succeeds, and the first can no
    longer; or it conflicts, because the object has changed: None then, for it may have been us who did.

    Raises what the API server answers otherwise; ConflictError only if the write was surely not done. A
    server that keeps failing is believed in the end (ServerError): what failed four times was not done.
    """
    backoff = Backoff()
    certain, failures = True, 0
    while True:
        try:
            return await request()
        except ConflictError:
            if certain:
                raise
            return None
        except UnreachableError:
            failures = 0
        except (ServerError, InvalidObjectError):
            failures += 1
            if failures >= _SERVER_ERRORS:
                raise
        certain = False
        await clock.sleep(backoff.next_s())


async def add_finalizer(client: Patcher, claim: ResourceClaim) -> ResourceClaim:
    """The claim with the finalizer, written if it was missing. Raises ConflictError if the claim changed."""
    finalizers = claim.metadata.finalizers or []
    if FINALIZER in finalizers:
        return claim
    return await _patch(client, claim, {"metadata": {"finalizers": [*finalizers, FINALIZER]}})


async def write_status(client: Patcher, claim: ResourceClaim, status: Mapping[str, Any]) -> ResourceClaim:
    """The claim with these fields of its status set (None clears one). Raises ConflictError if it changed."""
    return await _patch(client, claim, {"status": status}, subresource="status")


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
