"""NodePrepareResources and NodeUnprepareResources at the node plugin's socket."""

import argparse
import asyncio
import itertools
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp
import grpc

from benchlib.benches.tables import amount, goal_list, prose, table
from benchlib.claims import allocated_claim, delete_claim
from benchlib.results import Goal, Measurement, Result
from benchlib.statistics import summarize
from benchlib.world import GPUS, MACHINE, World, check_namespaces
from clusterlib.steps import Step, step
from tangram.base.atomicfile import write_atomically
from tangram.base.errors import TangramError
from tangram.kubeletplugin.driver import ClaimReference
from tangram.kubeletplugin.proto import dra_v1_pb2

_DESCRIPTION = """\
Calls the real node plugin (eight simulated GPUs) as the kubelet does, over its Unix socket: one claim at a
time, and eight calls at once with a claim each. The API server is embedded (TLS); a prepare reads its claim
there, once. What is timed is the gRPC call alone.

In turns with it, as references: the same call with messages of the same size to a bare gRPC server of the
same Python (what the transport costs); the read of a claim from the same API server by a bare HTTP client;
and writing a file durably twice, as a prepare does (what the disk costs).
"""
_EPILOG = """\
examples:
  hack/bench prepare
  hack/bench prepare --samples 2000 --output prepare.json
"""
_SERVICE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
_CHANNEL_OPTIONS = [("grpc.default_authority", "localhost")]
_WARM_UP = 20
_DURABLE_WRITES = 2
_WRITES_AFTERWARDS = 3
_LABELS = {
    "echo": "reference: a bare gRPC call, same sizes",
    "get": "reference: one read of a claim from the API server",
    "write": f"reference: {_DURABLE_WRITES} files written durably",
    "prepare": "**prepare, one at a time**",
    "unprepare": "**unprepare, one at a time**",
    "echo_eight": "reference: eight bare gRPC calls at once, each",
    "prepare_eight": "**prepare, eight at once, each**",
    "unprepare_eight": "unprepare, eight at once, each",
    "prepare_eight_all": "prepare, eight at once, until the last is done",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.add_argument("--samples", type=int, default=250, metavar="N", help="single calls (%(default)s)")
    parser.add_argument("--rounds", type=int, default=60, metavar="N", help="of eight at once (%(default)s)")


def measure(options: argparse.Namespace) -> Measurement:
    check_namespaces()
    with step(f"prepare: {options.samples} single calls, {options.rounds} rounds of {GPUS}") as progress:
        samples, sizes = asyncio.run(_measure(options, progress))
    series = {name: summarize(values, unit="ms") for name, values in samples.items()}
    single, eight = series["prepare"], series["prepare_eight"]
    return Measurement(
        parameters={"samples": options.samples, "rounds": options.rounds, "machine": MACHINE},
        series=series,
        goals=[
            Goal(name="prepare, one at a time, p50", value=single.p50, limit=3, unit="ms"),
            Goal(name="prepare, one at a time, p99", value=single.p99, limit=15, unit="ms"),
            Goal(name="prepare, eight at once, p50 of each", value=eight.p50, limit=10, unit="ms"),
        ],
        details={"request_bytes": sizes[0], "answer_bytes": sizes[1]},
    )


Call = Callable[[bytes], Awaitable[bytes]]  # bytes in and out, so that only plugin and transport are timed


class _Caller:
    """The kubelet's calls over a channel."""

    def __init__(self, channel: Any) -> None:
        self.prepare: Call = channel.unary_unary(f"{_SERVICE}/NodePrepareResources")
        self.unprepare: Call = channel.unary_unary(f"{_SERVICE}/NodeUnprepareResources")


async def _measure(
    options: argparse.Namespace, progress: Step
) -> tuple[dict[str, list[float]], tuple[int, int]]:
    samples: dict[str, list[float]] = {name: [] for name in _LABELS}
    async with World() as world:
        node = await world.start_node()
        await node.during(world.until_slices())
        await node.until_event("registered_with_kubelet")
        plugin = _Caller((await world.registered()).channel)
        sizes = await _sizes(world, plugin)
        server, socket = await world.start_echo(answer_bytes=sizes[1])
        await server.until_output()
        connector = aiohttp.TCPConnector(ssl=world.trust())
        async with (
            grpc.aio.insecure_channel(f"unix:{socket}", options=_CHANNEL_OPTIONS) as channel,
            aiohttp.ClientSession(connector=connector) as session,
        ):
            bench = _Bench(world, plugin=plugin, echo=_Caller(channel), session=session)
            for number in range(_WARM_UP + options.samples):
                found = await bench.single(number)
                if number >= _WARM_UP:
                    _add(samples, found)
                progress.note(f"{number} of {options.samples} single calls")
            for number in range(options.rounds):
                _add(samples, await bench.eight(number))
                progress.note(f"{number} of {options.rounds} rounds of {GPUS}")
    return samples, sizes


def _add(samples: dict[str, list[float]], found: Mapping[str, list[float]]) -> None:
    for name, values in found.items():
        samples[name] += values


async def _sizes(world: World, plugin: _Caller) -> tuple[int, int]:
    """Bytes of a request and of its answer."""
    claim = allocated_claim(world, "claim-0000", world.device_names()[0])
    request = _prepare_request(claim)
    answer = await plugin.prepare(request)
    _check(answer, dra_v1_pb2.NodePrepareResourcesResponse)
    await plugin.unprepare(_unprepare_request(claim))
    delete_claim(world, claim)
    return len(request), len(answer)


class _Bench:
    def __init__(
        self, world: World, *, plugin: _Caller, echo: _Caller, session: aiohttp.ClientSession
    ) -> None:
        self._world = world
        self._plugin = plugin
        self._echo = echo
        self._session = session
        self._devices = world.device_names()

    async def single(self, number: int) -> dict[str, list[float]]:
        """Milliseconds of one prepare and unprepare, and of each reference."""
        claim = allocated_claim(self._world, f"claim-{number:04}", self._devices[number % GPUS])
        request = _prepare_request(claim)
        echo_ms, _ = await _timed(self._echo.prepare(request))
        get_ms = await self._get(claim)
        write_ms = self._write(number)
        seen = len(self._world.server.requests)
        prepare_ms, answer = await _timed(self._plugin.prepare(request))
        await self._quiet(seen)
        unprepare_ms, freed = await _timed(self._plugin.unprepare(_unprepare_request(claim)))
        _check(answer, dra_v1_pb2.NodePrepareResourcesResponse)
        _check(freed, dra_v1_pb2.NodeUnprepareResourcesResponse)
        delete_claim(self._world, claim)
        return {
            "echo": [echo_ms], "get": [get_ms], "write": [write_ms],
            "prepare": [prepare_ms], "unprepare": [unprepare_ms],
        }  # fmt: skip

    async def eight(self, number: int) -> dict[str, list[float]]:
        """Milliseconds of each of eight calls that begin together, and of all of them."""
        claims = [
            allocated_claim(self._world, f"many-{number:04}-{device}", device) for device in self._devices
        ]
        requests = [_prepare_request(claim) for claim in claims]
        echoes = await asyncio.gather(*(_timed(self._echo.prepare(request)) for request in requests))
        all_ms, answers = await _timed(
            asyncio.gather(*(_timed(self._plugin.prepare(request)) for request in requests))
        )
        freed = await asyncio.gather(
            *(_timed(self._plugin.unprepare(_unprepare_request(claim))) for claim in claims)
        )
        for (_, answer), (_, end), claim in zip(answers, freed, claims, strict=True):
            _check(answer, dra_v1_pb2.NodePrepareResourcesResponse)
            _check(end, dra_v1_pb2.NodeUnprepareResourcesResponse)
            delete_claim(self._world, claim)
        return {
            "echo_eight": [ms for ms, _ in echoes],
            "prepare_eight": [ms for ms, _ in answers],
            "unprepare_eight": [ms for ms, _ in freed],
            "prepare_eight_all": [all_ms],
        }

    async def _quiet(self, seen: int) -> None:
        """Until the plugin has written what it writes after its answer: status of the claim, two events."""
        server = self._world.server

        def writes() -> int:
            later = itertools.islice(server.requests, seen, None)
            return sum(request.verb in {"patch", "create"} for request in later)

        await server.until(lambda: writes() >= _WRITES_AFTERWARDS)

    async def _get(self, claim: ClaimReference) -> float:
        path = f"/apis/resource.k8s.io/v1/namespaces/{claim.namespace}/resourceclaims/{claim.name}"
        started_s = time.perf_counter()
        async with self._session.get(self._world.server.url + path) as response:
            await response.read()
            response.raise_for_status()
        return 1000 * (time.perf_counter() - started_s)

    def _write(self, number: int) -> float:
        """As held state is written, in the file system where it is."""
        data = secrets.token_bytes(1024)
        started_s = time.perf_counter()
        for part in range(_DURABLE_WRITES):
            write_atomically(self._world.directory / f"w-{number % 8}-{part}", data, mode=0o600)
        return 1000 * (time.perf_counter() - started_s)


async def _timed(call: Awaitable[Any]) -> tuple[float, Any]:
    started_s = time.perf_counter()
    answer = await call
    return 1000 * (time.perf_counter() - started_s), answer


def _prepare_request(claim: ClaimReference) -> bytes:
    return dra_v1_pb2.NodePrepareResourcesRequest(claims=[_message(claim)]).SerializeToString()


def _unprepare_request(claim: ClaimReference) -> bytes:
    return dra_v1_pb2.NodeUnprepareResourcesRequest(claims=[_message(claim)]).SerializeToString()


def _message(claim: ClaimReference) -> Any:
    return dra_v1_pb2.Claim(namespace=claim.namespace, uid=claim.uid, name=claim.name)


def _check(answer: bytes, message: Any) -> None:
    for uid, result in message.FromString(answer).claims.items():
        if result.error:
            raise TangramError(f"the plugin refused claim {uid}: {result.error}")


def section(results: Mapping[str, Result]) -> str:
    result = results[""]
    series, details = result.series, result.details
    floor_ms = series["echo"].p50 + series["get"].p50 + series["write"].p50
    what = f"""
        The kubelet's calls at the node plugin's socket, {GPUS} simulated GPUs (`{MACHINE}`), a claim with one
        GPU each: {details["request_bytes"]} bytes there, {details["answer_bytes"]} back. A prepare reads its
        claim from the API server (embedded, TLS) and writes its held state to the disk twice, before and
        after its CDI file (in memory, as on most nodes). The references, in turns with it, are these parts
        alone: together {amount(floor_ms)} ms of {amount(series["prepare"].p50)} ms."""
    return "\n\n".join(["## Prepare", prose(what), goal_list(result), table(result, _LABELS)])
