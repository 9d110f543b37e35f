"""Claims as no controller should write them, at the node: one answer for the kubelet each.

Every field of a claim, taken from the types, with every value, through the code that answers the kubelet.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path as FilePath
from typing import Any

import pytest
import structlog
from tests.unit.bad_input.hostile import FEW, Path, changed, deep, wire_paths, without
from tests.unit.node.support import NODE, Claims, Node, claim_object, uid

from tangram import DRIVER_NAME
from tangram.base.clock import SystemClock
from tangram.kube.events import EventRecorder
from tangram.kube.objects import ResourceClaim
from tangram.kube.resources import Resource
from tangram.kubeletplugin.claims import Answer, ClaimService
from tangram.kubeletplugin.driver import ClaimReference
from tangram.node.driver import NodeDriver
from tangram.node.report import Reporter

PARAMETERS = {
    "apiVersion": f"{DRIVER_NAME}/v1alpha1",
    "kind": "GPUClaimParameters",
    "memoryGB": 40,
    "gpuType": "A100",
}
CONFIG = [{"source": "FromClaim", "opaque": {"driver": DRIVER_NAME, "parameters": PARAMETERS}}]
REFERENCE = ClaimReference(namespace="ns", name="claim-1", uid=uid(1))
FINE = ClaimReference(namespace="ns", name="claim-2", uid=uid(2))


class Api(Claims):
    """Serves claims as they were put, and takes every write."""

    async def patch(self, _resource: Resource, _body: Any, **_where: Any) -> bytes:
        return b"{}"

    async def create(self, _resource: Resource, _body: Any, **_where: Any) -> bytes:
        return b"{}"


class Kubelet:
    """Asks the real service, driver, preparer and reporter of one node."""

    def __init__(self, root: FilePath) -> None:
        clock = SystemClock()
        self.node = Node(root)
        self.api = Api()
        client: Any = self.api
        self.events = EventRecorder(client, controller="test", instance="test", clock=clock)
        self.reporter = Reporter(client=client, events=self.events, clock=clock, node_name=NODE)
        self.service = ClaimService(
            driver_name=DRIVER_NAME,
            driver=NodeDriver(
                preparer=self.node.preparer,
                reporter=self.reporter,
                inventory=lambda: self.node.inventory,
                lives=self.node.reconciler(self.api).lives,
                tidy=self.node.reconciler(self.api).local,
                clock=clock,
            ),
            claims=client,
            clock=clock,
        )

    async def prepare(self, item: dict[str, Any]) -> Answer:
        self.api.objects["claim-1"] = item
        return (await self.service.prepare([REFERENCE]))[REFERENCE.uid]

    async def unprepare(self, reference: ClaimReference) -> Answer:
        return (await self.service.unprepare([reference]))[reference.uid]


def base(node: Node) -> dict[str, Any]:
    return claim_object(node.devices[:2], config=CONFIG, consumers=["pod"], shareID=None)


@pytest.fixture
async def kubelet(tmp_path: FilePath) -> Kubelet:
    return Kubelet(tmp_path)


@contextlib.asynccontextmanager
async def reporting(kubelet: Kubelet) -> AsyncIterator[list[Any]]:
    """What is logged while status and events are written beside."""
    with structlog.testing.capture_logs() as logged:
        loops = [asyncio.create_task(kubelet.reporter.run()), asyncio.create_task(kubelet.events.run())]
        try:
            yield logged
        finally:
            for loop in loops:
                assert not loop.done(), loop
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)


@pytest.mark.parametrize("path", list(wire_paths(ResourceClaim)), ids=str)
async def test_every_field_with_every_value(kubelet: Kubelet, path: Path) -> None:
    good = base(kubelet.node)
    async with reporting(kubelet) as logged:
        for item in [without(good, path), *(changed(good, path, value) for value in (*FEW, deep(60)))]:
            answer = await kubelet.prepare(item)
            assert bool(answer.devices) is not bool(answer.error), answer
            if answer.error:
                told(answer.error)
            assert (await kubelet.unprepare(REFERENCE)).error == ""
        kubelet.api.objects["claim-2"] = claim_object(kubelet.node.devices[:2], number=2)
        fine = (await kubelet.service.prepare([FINE]))[FINE.uid]
        assert fine.error == ""
        assert (await kubelet.unprepare(FINE)).error == ""
        kubelet.api.objects["claim-1"] = good
    assert [entry for entry in logged if "internal" in str(entry.get("event"))] == []


def told(error: str) -> None:
    """What the kubelet puts into the pod's event: which claim, what is wrong, no traceback."""
    assert str(REFERENCE) in error
    assert "internal error" not in error, error
    assert len(error) <= 4096
    assert all(character.isprintable() or character == "\n" for character in error)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"null",
        b"\xff",
        b"[" * 100_000,
        b'{"metadata":' * 5_000,
        json.dumps({"metadata": {}}).encode(),
    ],
    ids=lambda data: str(data[:20]),
)
async def test_answers_that_are_no_claim(
    kubelet: Kubelet, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def get(_resource: Resource, **_where: Any) -> bytes:
        return data

    monkeypatch.setattr(kubelet.api, "get", get)
    answer = (await kubelet.service.prepare([REFERENCE]))[REFERENCE.uid]
    assert answer.error
    told(answer.error)
