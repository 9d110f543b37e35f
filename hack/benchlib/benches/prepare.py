"""NodePrepareResources and NodeUnprepareResources at the node plugin's socket."""

import argparse
import asyncio
import secrets
import time
from collections.abc import Mapping

import aiohttp
import grpc

from benchlib.benches.tables import amount, goal_list, prose, table
from benchlib.calls import Caller, check, prepare_request, quiet, timed, unprepare_request
from benchlib.claims import allocated_claim, delete_claim
from benchlib.kinds import BURST, MIG_PER_GPU, measure_kinds
from benchlib.kinds import MACHINE as KINDS_MACHINE
from benchlib.processes import Process
from benchlib.results import Goal, Measurement, Result
from benchlib.series import summarize
from benchlib.world import GPUS, MACHINE, World, check_namespaces
from clusterlib.steps import Step, step
from tangram.base.atomicfile import write_atomically
from tangram.kubeletplugin.driver import ClaimReference
from tangram.kubeletplugin.proto import dra_v1_pb2

_DESCRIPTION = """\
Calls the real node plugin (eight simulated GPUs) as the kubelet does, over its Unix socket: one claim at a
time, and eight calls at once with a claim each. The API server is embedded (TLS); a prepare reads its claim
there, once. What is timed is the gRPC call alone.

In turns with it, as references: the same call with messages of the same size to a bare gRPC server of the
same Python (what the transport costs); the read of a claim from the same API server by a bare HTTP client;
and writing a file durably, as a prepare does (what the disk costs).

Then, on a machine of all kinds: a claim of each kind alone (by MPS: one that joins a running daemon), MIG
claims while a call of NVML on another GPU hangs, a burst of 64 claims by time-slicing, and a reconcile pass
over 56 MIG claims. Simulated hardware takes no time, so that what is measured is Tangram's own.
"""
_EPILOG = """\
examples:
  hack/bench prepare
  hack/bench prepare --samples 2000 --output prepare.json
"""
_CHANNEL_OPTIONS = [("grpc.default_authority", "localhost")]
_WARM_UP = 20
_LABELS = {
    "echo": "reference: a bare gRPC call, same sizes",
    "get": "reference: one read of a claim from the API server",
    "write": "reference: a file written durably",
    "prepare": "**prepare, one at a time**",
    "prepare_cpu": "… CPU time of the plugin",
    "unprepare": "**unprepare, one at a time**",
    "unprepare_cpu": "… CPU time of the plugin",
    "echo_eight": "reference: eight bare gRPC calls at once, each",
    "prepare_eight": "**prepare, eight at once, each**",
    "prepare_eight_all": "prepare, eight at once, until the last is done",
    "prepare_eight_cpu": "… CPU time of the plugin, for each",
    "unprepare_eight": "unprepare, eight at once, each",
}
_KINDS_LABELS = {
    "mps_join": "**MPS, joins a running daemon: prepare**",
    "mps_leave": "… unprepare",
    "timeslice": "**time-slicing: prepare**",
    "timeslice_end": "… unprepare",
    "mig": "**MIG, an instance is made: prepare**",
    "mig_end": "… unprepare, it is destroyed",
    "mig_beside_hung": "**… beside a GPU whose driver call hangs: prepare**",
    "mig_end_beside_hung": "… unprepare",
    "burst": f"**{BURST} claims at once by time-slicing: prepare, each**",
    "burst_all": "… until the last is done",
    "burst_unprepare": "… unprepare, each",
    "reconcile": f"**a reconcile pass over {GPUS * MIG_PER_GPU} MIG claims**",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.add_argument("--samples", type=int, default=250, metavar="N", help="single calls (%(default)s)")
    parser.add_argument("--rounds", type=int, default=60, metavar="N", help="of eight at once (%(default)s)")
    parser.add_argument(
        "--bursts", type=int, default=10, metavar="N", help=f"of {BURST} at once (%(default)s)"
    )


def measure(options: argparse.Namespace) -> Measurement:
    check_namespaces()
    with step(f"prepare: {options.samples} single calls, {options.rounds} rounds of {GPUS}") as progress:
        samples, sizes = asyncio.run(_measure(options, progress))
        samples |= asyncio.run(
            measure_kinds(options.samples, options.bursts, passes=options.rounds, progress=progress)
        )
    series = {name: summarize(values, unit="ms") for name, values in samples.items()}
    single, eight, mps = series["prepare"], series["prepare_eight"], series["mps_join"]
    return Measurement(
        parameters={"samples": options.samples, "rounds": options.rounds, "machine": MACHINE},
        series=series,
        goals=[
            Goal(name="prepare, one at a time, p50", value=single.p50, limit=3, unit="ms"),
            Goal(name="prepare, one at a time, p99", value=single.p99, limit=15, unit="ms"),
            Goal(name="prepare, eight at once, p50 of each", value=eight.p50, limit=10, unit="ms"),
            Goal(name="MPS, joining a running daemon, p50", value=mps.p50, limit=5, unit="ms"),
            Goal(name="MPS, joining a running daemon, p99", value=mps.p99, limit=20, unit="ms"),
            Goal(name="MIG, beyond the calls of NVML, p50", value=series["mig"].p50, limit=10, unit="ms"),
        ],
        details={"request_bytes": sizes[0], "answer_bytes": sizes[1]},
    )


async def _measure(
    options: argparse.Namespace, progress: Step
) -> tuple[dict[str, list[float]], tuple[int, int]]:
    samples: dict[str, list[float]] = {name: [] for name in _LABELS}
    async with World() as world:
        node = await world.start_node()
        await node.during(world.until_slices())
        await node.until_event("registered_with_kubelet")
        plugin = Caller((await world.registered()).channel)
        sizes = await _sizes(world, plugin)
        server, socket = await world.start_echo(answer_bytes=sizes[1])
        await server.until_output()
        connector = aiohttp.TCPConnector(ssl=world.trust())
        async with (
            grpc.aio.insecure_channel(f"unix:{socket}", options=_CHANNEL_OPTIONS) as channel,
            aiohttp.ClientSession(connector=connector) as session,
        ):
            bench = _Bench(world, node, plugin=plugin, echo=Caller(channel), session=session)
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


async def _sizes(world: World, plugin: Caller) -> tuple[int, int]:
    """Bytes of a request and of its answer."""
    claim = allocated_claim(world, "claim-0000", world.device_names()[0])
    request = prepare_request(claim)
    answer = await plugin.prepare(request)
    check(answer, dra_v1_pb2.NodePrepareResourcesResponse)
    await plugin.unprepare(unprepare_request(claim))
    delete_claim(world, claim)
    return len(request), len(answer)


class _Bench:
    def __init__(
        self, world: World, node: Process, *, plugin: Caller, echo: Caller, session: aiohttp.ClientSession
    ) -> None:
        self._world = world
        self._node = node
        self._plugin = plugin
        self._echo = echo
        self._session = session
        self._devices = world.device_names()

    async def single(self, number: int) -> dict[str, list[float]]:
        """Milliseconds of one prepare and unprepare, and of each reference."""
        claim = allocated_claim(self._world, f"claim-{number:04}", self._devices[number % GPUS])
        request = prepare_request(claim)
        echo_ms, _ = await timed(self._echo.prepare(request))
        get_ms = await self._get(claim)
        write_ms = self._write(number)
        seen = len(self._world.server.requests)
        before_s = self._node.cpu_s()
        prepare_ms = await self._plugin.timed_prepare(claim)
        prepared_s = self._node.cpu_s()
        await quiet(self._world, since=seen)
        quiet_s = self._node.cpu_s()
        unprepare_ms = await self._plugin.timed_unprepare(claim)
        unprepared_s = self._node.cpu_s()
        delete_claim(self._world, claim)
        return {
            "echo": [echo_ms], "get": [get_ms], "write": [write_ms],
            "prepare": [prepare_ms], "prepare_cpu": [1000 * (prepared_s - before_s)],
            "unprepare": [unprepare_ms], "unprepare_cpu": [1000 * (unprepared_s - quiet_s)],
        }  # fmt: skip

    async def eight(self, number: int) -> dict[str, list[float]]:
        """Milliseconds of each of eight calls that begin together, and of all of them."""
        claims = [
            allocated_claim(self._world, f"many-{number:04}-{device}", device) for device in self._devices
        ]
        requests = [prepare_request(claim) for claim in claims]
        echoes = await asyncio.gather(*(timed(self._echo.prepare(request)) for request in requests))
        seen = len(self._world.server.requests)
        before_s = self._node.cpu_s()
        all_ms, each_ms = await timed(asyncio.gather(*map(self._plugin.timed_prepare, claims)))
        cpu_ms = 1000 * (self._node.cpu_s() - before_s)
        await quiet(self._world, since=seen, claims=GPUS)
        unprepare_ms = await asyncio.gather(*map(self._plugin.timed_unprepare, claims))
        for claim in claims:
            delete_claim(self._world, claim)
        return {
            "echo_eight": [ms for ms, _ in echoes],
            "prepare_eight": each_ms,
            "prepare_eight_all": [all_ms],
            "prepare_eight_cpu": [cpu_ms / GPUS],
            "unprepare_eight": unprepare_ms,
        }

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
        write_atomically(self._world.directory / f"w-{number}", data, mode=0o600)
        return 1000 * (time.perf_counter() - started_s)


def section(results: Mapping[str, Result]) -> str:
    result = results[""]
    series, details = result.series, result.details
    floor_ms = series["echo"].p50 + series["get"].p50 + series["write"].p50
    what = f"""
        The kubelet's calls at the node plugin's socket, {GPUS} simulated GPUs (`{MACHINE}`), a claim with one
        GPU each: {details["request_bytes"]} bytes there, {details["answer_bytes"]} back. A prepare reads its
        claim from the API server (embedded, TLS), writes its held state to the disk, once, and its CDI file
        (in memory, as on most nodes). The references, in turns with it, are these parts alone: together
        {amount(floor_ms)} ms of {amount(series["prepare"].p50)} ms. The kubelet's side of the calls, the API
        server and the plugin share the CPUs."""
    kinds = f"""
        The same with claims of every kind, {GPUS} simulated GPUs (`{KINDS_MACHINE}`) whose calls take no
        time: what is measured is Tangram's own. The {BURST} claims come in calls of their own, all at once. A
        reconcile pass compares held files, claims at the API server (read one by one, embedded), CDI files
        and MIG instances; there is one each minute."""
    return "\n\n".join(
        [
            *("## Prepare", prose(what), goal_list(result), table(result, _LABELS)),
            *(prose(kinds), table(result, _KINDS_LABELS)),
        ]
    )
