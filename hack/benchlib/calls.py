"""The kubelet's calls at the node plugin's socket, timed."""

import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Any

from benchlib.world import World
from tangram.base.errors import TangramError
from tangram.kubeletplugin.driver import ClaimReference
from tangram.kubeletplugin.proto import dra_v1_pb2

_SERVICE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
_WRITES_AFTERWARDS = 3

Call = Callable[[bytes], Awaitable[bytes]]  # bytes in and out, so that only plugin and transport are timed


class Caller:
    """The kubelet's calls over a channel."""

    def __init__(self, channel: Any) -> None:
        self.prepare: Call = channel.unary_unary(f"{_SERVICE}/NodePrepareResources")
        self.unprepare: Call = channel.unary_unary(f"{_SERVICE}/NodeUnprepareResources")

    async def timed_prepare(self, claim: ClaimReference) -> float:
        """Milliseconds of a prepare. TangramError if the plugin refuses."""
        elapsed_ms, answer = await timed(self.prepare(prepare_request(claim)))
        check(answer, dra_v1_pb2.NodePrepareResourcesResponse)
        return elapsed_ms

    async def timed_unprepare(self, claim: ClaimReference) -> float:
        """Milliseconds of an unprepare. TangramError if the plugin refuses."""
        elapsed_ms, answer = await timed(self.unprepare(unprepare_request(claim)))
        check(answer, dra_v1_pb2.NodeUnprepareResourcesResponse)
        return elapsed_ms


async def timed(call: Awaitable[Any]) -> tuple[float, Any]:
    """Milliseconds, and the result."""
    started_s = time.perf_counter()
    answer = await call
    return 1000 * (time.perf_counter() - started_s), answer


def prepare_request(claim: ClaimReference) -> bytes:
    return dra_v1_pb2.NodePrepareResourcesRequest(claims=[_message(claim)]).SerializeToString()


def unprepare_request(claim: ClaimReference) -> bytes:
    return dra_v1_pb2.NodeUnprepareResourcesRequest(claims=[_message(claim)]).SerializeToString()


def _message(claim: ClaimReference) -> Any:
    return dra_v1_pb2.Claim(namespace=claim.namespace, uid=claim.uid, name=claim.name)


def check(answer: bytes, message: Any) -> None:
    """TangramError if the plugin refused a claim."""
    for uid, result in message.FromString(answer).claims.items():
        if result.error:
            raise TangramError(f"the plugin refused claim {uid}: {result.error}")


async def quiet(world: World, *, since: int, claims: int = 1) -> None:
    """Until the plugin has written what it writes after its answer: status of each claim, two events.

    `since` is the number of requests that the server had before.
    """

    def writes() -> int:
        later = itertools.islice(world.server.requests, since, None)
        return sum(request.verb in {"patch", "create"} for request in later)

    await world.server.until(lambda: writes() >= claims * _WRITES_AFTERWARDS, timeout_s=60)
