"""Each check of the API server: passing, and failing with what mends it."""

import json
from typing import Any, cast

import pytest
from tests.unit.model.boards import machine
from tests.unit.node.doctor.test_local import results, text

from tangram.base.errors import (
    ConfigurationError,
    ForbiddenError,
    NotFoundError,
    TangramError,
    UnreachableError,
)
from tangram.kube.client import Client
from tangram.kube.resources import NODES, RESOURCE_SLICES, Resource
from tangram.node.doctor import cluster
from tangram.node.drains import Drain
from tangram.node.inventory import Inventory
from tangram.node.settings import NodeSettings
from tangram.node.sight import Api, Files, Gpus, Plugin, Sight

SETTINGS = NodeSettings(node_name="node-1")
REFUSED = ForbiddenError("system:serviceaccount:x may not list", status=403)


class Server:
    """What an API server answers, or raises."""

    server = "https://10.0.0.1"

    def __init__(self, number: tuple[int, int] = (1, 36), /, **errors: TangramError) -> None:
        self._number, self._errors = number, errors

    async def server_version(self) -> tuple[int, int]:
        self._raise("version")
        return self._number

    async def get(self, resource: Resource, *, name: str) -> bytes:
        assert (resource, name) == (NODES, "node-1")
        self._raise("get")
        return b"{}"

    async def list_page(self, resource: Resource, **_: Any) -> bytes:
        assert resource == RESOURCE_SLICES
        self._raise("list")
        return json.dumps({"items": []}).encode()

    def _raise(self, call: str) -> None:
        if call in self._errors:
            raise self._errors[call]


async def ask(server: Server) -> dict[str, str]:
    return results(await cluster.api_server(cast("Client", server), SETTINGS))


async def test_well() -> None:
    assert await ask(Server()) == {"api-server": "ok", "node-object": "ok", "api-rights": "ok"}


@pytest.mark.parametrize(
    ("server", "failing"),
    [
        (Server((1, 33)), ["api-server"]),
        (Server(version=UnreachableError("no answer")), ["api-server"]),
        (Server(get=NotFoundError("no", status=404)), ["node-object"]),
        (Server(get=REFUSED, list=REFUSED), ["node-object", "api-rights"]),
    ],
)
async def test_not_well(server: Server, failing: list[str]) -> None:
    found = await ask(server)
    assert [name for name, result in found.items() if result == "fail"] == failing


def test_no_server() -> None:
    for error in (UnreachableError("no answer"), ConfigurationError("no kubeconfig")):
        assert results(cluster.no_api_server(error)) == {"api-server": "fail"}


class TestPublished:
    def of(self, *, runs: bool = True, drained: int | None = None, **changes: str) -> list[Any]:
        of = machine("t4-x4")
        published: dict[Any, Any] = {gpu.uuid: "healthy" for gpu in of.gpus}
        for position, state in changes.items():
            published[of.gpus[int(position[1:])].uuid] = state
        published = {uuid: state for uuid, state in published.items() if state}
        return cluster.published(
            Sight(
                gpus=Gpus(inventory=Inventory(machine=of)),
                plugin=Plugin(state="ready" if runs else "not running"),
                api=Api(published=published),
                files=Files(drains={of.gpus[drained].uuid: Drain()} if drained is not None else {}),
            )
        )

    def test_well(self) -> None:
        assert results(self.of()) == {"published": "ok"}
        assert results(self.of(_1="drained", drained=1)) == {"published": "ok"}
        # A server before 1.36 drops the taint.
        assert results(self.of(_1="unhealthy", drained=1)) == {"published": "ok"}

    def test_not_well(self) -> None:
        assert "is published as unhealthy" in text(self.of(_0="unhealthy"))
        assert "is published" in text(self.of(_2=""))
        assert results(self.of(_2="")) == {"published": "fail"}
        assert results(self.of(_2="", runs=False)) == {"published": "fail"}
        assert results(self.of(drained=3)) == {"published": "warn"}
        assert results(self.of(drained=3, runs=False)) == {"published": "warn"}

    def test_not_known(self) -> None:
        assert results(cluster.published(Sight())) == {"published": "skip"}
