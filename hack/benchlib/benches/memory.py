"""What the node plugin and the controller keep in memory, and what that is made of."""

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from benchlib.benches.tables import amount, goal_list, prose, table
from benchlib.claims import allocated_claim, delete_claim
from benchlib.kinds import MACHINE as KINDS_MACHINE
from benchlib.kinds import SETTINGS as KINDS_SETTINGS
from benchlib.processes import Memory, Process
from benchlib.results import Goal, Measurement, Result
from benchlib.series import summarize
from benchlib.world import GPUS, MACHINE, World, check_namespaces
from clusterlib.steps import Step, step
from tangram import DRIVER_NAME
from tangram.base.errors import TangramError

_DESCRIPTION = """\
Reads the resident set (RSS) and the proportional set (PSS) of the real processes from /proc/PID/smaps: of the
node plugin on a simulated machine of eight GPUs, once all its slices are published and it is registered, and
again after preparing and unpreparing many claims; of one that offers all kinds of devices of eight H100; of
the controller once it leads and has seen the node.

The reference, in turns with them: a process that has imported grpcio and aiohttp and done nothing, which is
the least a DRA plugin in Python can be made of. A second process imports what the node plugin imports, one
package after the other, and tells what each adds in memory and time.
"""
_EPILOG = """\
examples:
  hack/bench memory
  hack/bench memory --prepares 1000 --samples 1
"""
MIB = 2**20
# In this order: what two packages share counts for the first. The last is Tangram itself and the rest.
_NODE_IMPORTS = (
    "asyncio", "ssl", "msgspec", "structlog", "grpc", "google.protobuf.message", "aiohttp",
    "prometheus_client", "tangram.node.app",
)  # fmt: skip
_LOOKS_S = 15
_LABELS = {
    "reference_rss": "reference: grpcio and aiohttp imported, RSS",
    "node_rss": "**node plugin after its slices are published, RSS**",
    "node_pss": "… PSS",
    "warm_rss": "node plugin after half of the prepares, RSS",
    "prepared_rss": "… after all prepares, RSS",
    "prepared_pss": "… PSS",
    "kinds_rss": "**node plugin with all kinds of eight H100, RSS**",
    "kinds_pss": "… PSS",
    "looked_rss": f"… after {_LOOKS_S} s of looking at the GPUs each second, RSS",
    "controller_rss": "controller that leads, RSS",
    "controller_pss": "… PSS",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.add_argument("--samples", type=int, default=5, metavar="N", help="processes of each (%(default)s)")
    parser.add_argument(
        "--prepares", type=int, default=1000, metavar="N", help="claims prepared and unprepared (%(default)s)"
    )


def measure(options: argparse.Namespace) -> Measurement:
    check_namespaces()
    with step(f"memory: {options.samples} rounds") as progress:
        samples, imports, parts = asyncio.run(_measure(options, progress))
        looking = asyncio.run(_measure_kinds(options.samples, samples, progress))
    series = {name: summarize(values, unit="MiB") for name, values in samples.items()}
    value, prepared, kinds = (series[f"{name}_rss"].p50 for name in ("node", "prepared", "kinds"))
    growth = prepared - series["warm_rss"].p50
    return Measurement(
        parameters={"samples": options.samples, "prepares": options.prepares, "machine": MACHINE},
        series=series,
        goals=[
            Goal(name="node plugin with 8 GPUs, RSS, p50", value=value, limit=85, unit="MiB"),
            Goal(name="node plugin with 8 GPUs, RSS, p50", value=value, limit=65, unit="MiB", stretch=True),
            Goal(name="the same after the prepares", value=prepared, limit=80, unit="MiB"),
            Goal(name="growth in the second half of them", value=growth, limit=1, unit="MiB"),
            Goal(name="with all kinds of eight H100", value=kinds, limit=85, unit="MiB"),
        ],
        details={"imports": imports, "parts": parts, "looking": looking},
    )


async def _measure(
    options: argparse.Namespace, progress: Step
) -> tuple[dict[str, list[float]], list[dict[str, Any]], dict[str, float]]:
    samples: dict[str, list[float]] = {name: [] for name in _LABELS}
    imports: list[dict[str, dict[str, float]]] = []
    seen: list[Memory] = []

    def note(name: str, memory: Memory) -> None:
        samples[f"{name}_rss"].append(memory.resident_bytes / MIB)
        if f"{name}_pss" in samples:
            samples[f"{name}_pss"].append(memory.proportional_bytes / MIB)

    async with World() as world:
        for done in range(options.samples):
            progress.note(f"{done} of {options.samples}")
            reference = await world.start_imports("grpc", "aiohttp")
            await reference.until_output()
            note("reference", reference.memory())
            await reference.kill()
            parts = await world.start_imports(*_NODE_IMPORTS)
            imports.append(json.loads(await parts.until_output()))
            await parts.kill()

            world.drop_slices()
            node = await world.start_node()
            await node.during(world.until_slices())
            await node.until_event("registered_with_kubelet")
            note("node", node.memory())
            seen.append(node.memory())
            await _prepare(world, node, options.prepares // 2)
            note("warm", node.memory())
            await _prepare(world, node, options.prepares - options.prepares // 2)
            note("prepared", node.memory())

            controller = await world.start_controller()
            await controller.until_event("synced")
            note("controller", controller.memory())
            await controller.kill()
            await node.kill()
    return samples, _import_rows(imports), _parts(seen)


async def _measure_kinds(rounds: int, samples: Mapping[str, list[float]], progress: Step) -> dict[str, float]:
    """Notes the memory with many devices; returns their number and the share of a core that looking takes."""
    shares: list[float] = []
    async with World(KINDS_SETTINGS | {"rescanIntervalS": 1}) as world:
        for done in range(rounds):
            progress.note(f"all kinds: {done} of {rounds}")
            world.drop_slices()
            node = await world.start_node()
            await node.during(world.until_slices())
            await node.until_event("registered_with_kubelet")
            memory = node.memory()
            samples["kinds_rss"].append(memory.resident_bytes / MIB)
            samples["kinds_pss"].append(memory.proportional_bytes / MIB)
            before_s = node.cpu_s()
            await node.during(asyncio.sleep(_LOOKS_S))
            shares.append((node.cpu_s() - before_s) / _LOOKS_S)
            samples["looked_rss"].append(node.memory().resident_bytes / MIB)
            await node.kill()
        kinds = ("gpu", "mps", "timeslice", "mig")
        devices = sum(len(world.device_names(kind)) for kind in kinds)
    return {"devices": devices, "share": summarize(shares, unit="").p50}


async def _prepare(world: World, node: Process, count: int) -> None:
    """Each device in turn."""
    devices = world.device_names()
    for number in range(count):
        claim = allocated_claim(world, f"claim-{number}", devices[number % len(devices)])
        answers = await node.during(world.kubelet.prepare(DRIVER_NAME, [claim]))
        if answers[claim.uid].error:
            raise TangramError(answers[claim.uid].error)
        await node.during(world.kubelet.unprepare(DRIVER_NAME, [claim]))
        delete_claim(world, claim)


def _import_rows(rounds: Sequence[Mapping[str, Mapping[str, float]]]) -> list[dict[str, Any]]:
    """Medians over the rounds, in the order of the imports."""
    return [
        {
            "module": name,
            "ms": summarize([each[name]["ms"] for each in rounds], unit="ms").p50,
            "mib": summarize([each[name]["bytes"] / MIB for each in rounds], unit="MiB").p50,
        }
        for name in rounds[0]
    ]


def _parts(seen: Sequence[Memory]) -> dict[str, float]:
    """MiB of the median process: what is its own, and what are pages of files."""
    memory = sorted(seen, key=lambda each: each.resident_bytes)[len(seen) // 2]
    files = sorted(memory.by_file_bytes.items(), key=lambda item: -item[1])
    largest = {name: size / MIB for name, size in files[:4]}
    other = sum(size for _, size in files[4:]) / MIB
    return {"anonymous": memory.anonymous_bytes / MIB, **largest, "other files": other}


def section(results: Mapping[str, Result]) -> str:
    result = results[""]
    looking = result.details["looking"]
    what = f"""
        Of the real processes, {GPUS} simulated GPUs (`{MACHINE}`), credentials as in a pod: the resident set
        (RSS) and the proportional set (PSS, a page shared by n processes counts 1/n) from /proc/PID/smaps.
        The reference has imported grpcio and aiohttp and done nothing: the least that a DRA plugin in Python
        can be made of. Each of the {result.parameters["prepares"]} prepares is followed by its unprepare. All
        kinds of {GPUS} H100 (`{KINDS_MACHINE}`) are {looking["devices"]:.0f} devices; looking at their GPUs
        each second (the default is 30 s) takes {100 * looking["share"]:.1f} % of a core."""
    made_of = """
        What the node plugin is made of, by imports one after the other (what two share counts for the
        first):"""
    rows = "\n".join(
        f"| {_import_label(row['module'])} | {amount(row['mib'])} MiB | {amount(row['ms'])} ms |"
        for row in result.details["imports"]
    )
    parts = ", ".join(f"{name} {amount(size)} MiB" for name, size in result.details["parts"].items())
    imported_mib = sum(row["mib"] for row in result.details["imports"])
    by_page = f"""
        That is {amount(imported_mib)} MiB; the rest came while it started: settings, the machine, TLS, and
        threads and sockets of gRPC. By kind of page, once its slices are published: {parts}. The Go example
        driver is said to have 45 MiB (literature, another machine)."""
    return "\n\n".join(
        [
            *("## Memory", prose(what), goal_list(result), table(result, _LABELS), prose(made_of)),
            f"| import | adds | in |\n|---|---|---|\n{rows}",
            prose(by_page),
        ]
    )


def _import_label(module: str) -> str:
    match module:
        case "python":
            return "the interpreter"
        case "tangram.node.app":
            return "`tangram.node.app`: Tangram and all the rest"
    return f"`{module}`"
