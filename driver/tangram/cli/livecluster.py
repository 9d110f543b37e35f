"""The objects of a running cluster that an allocation depends on, as if they came from a file."""

import msgspec

from tangram.base.errors import ExpiredError
from tangram.kube.client import Client
from tangram.kube.objectfiles import FileObject
from tangram.kube.resources import (
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)

_PAGE = 500
_ATTEMPTS = 3


class _ListMetadata(msgspec.Struct, frozen=True):
    continue_token: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct, frozen=True):
    metadata: _ListMetadata = _ListMetadata()
    items: list[msgspec.Raw] | None = None


_decoder = msgspec.json.Decoder(_List)


async def read_cluster(client: Client, *, namespace: str) -> list[FileObject]:
    """All slices, classes, nodes and claims, and the pods and templates of a namespace. Raises KubeError."""
    found: list[FileObject] = []
    for resource, within in (
        (RESOURCE_SLICES, ""),
        (DEVICE_CLASSES, ""),
        (NODES, ""),
        (RESOURCE_CLAIMS, ""),
        (RESOURCE_CLAIM_TEMPLATES, namespace),
        (PODS, namespace),
    ):
        found += await _all(client, resource, namespace=within)
    return found


async def _all(client: Client, resource: Resource, *, namespace: str) -> list[FileObject]:
    for attempt in range(_ATTEMPTS):
        try:
            return await _pages(client, resource, namespace=namespace)
        except ExpiredError:  # the list took longer than the server keeps its pages
            if attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError


async def _pages(client: Client, resource: Resource, *, namespace: str) -> list[FileObject]:
    found: list[FileObject] = []
    token = ""
    while True:
        page = _decoder.decode(
            await client.list_page(resource, namespace=namespace, limit=_PAGE, continue_token=token)
        )
        found += [
            FileObject(
                where="the cluster", api_version=resource.api_version, kind=resource.kind, raw=bytes(item)
            )
            for item in page.items or ()
        ]
        token = page.metadata.continue_token
        if not token:
            return found
