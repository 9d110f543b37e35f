"""From the start of the node plugin's process to its first ResourceSlice."""

import argparse
import asyncio
import time
from collections.abc import Mapping

from benchlib.benches.tables import amount, goal_list, prose, table
from benchlib.processes import Process
from benchlib.results import Goal, Measurement, Result
from benchlib.series import summarize
from benchlib.world import GPUS, MACHINE, World, check_namespaces
from clusterlib.steps import Step, step

_DESCRIPTION = """\
Starts the real node plugin on a simulated machine of eight GPUs, with an embedded API server (TLS, and
credentials as in a pod), and measures the time from before the fork to the first ResourceSlice at the server;
beside that when each phase ended, by the plugin's own log. Files are compiled and in the page cache.

In turns with it, as references: an interpreter that does nothing, and a bare gRPC server on a Unix socket
(`import grpc`, serve): what any DRA plugin in Python has to do at least.
"""
_EPILOG = """\
examples:
  hack/bench start
  hack/bench start --samples 50 --output start.json
"""

# Phases in their order: name of the series, event of the log that ends it.
_PHASES = (
    ("imports", "settings"),
    ("hardware", "gpus_changed"),
    ("sockets", "plugin_started"),
)
_LABELS = {
    "python": "reference: an interpreter that does nothing, to its end",
    "grpc": "reference: a bare gRPC server, to its first listening",
    "start": "**the node plugin, to its first slice**",
    "imports": "of that: interpreter, imports, settings",
    "hardware": "… looking at the (simulated) GPUs and at held state",
    "sockets": "… opening the two gRPC sockets",
    "api": "… first requests to the API server, first slice",
    "all": f"the node plugin, to its last slice of {GPUS}",
    "cpu": "the node plugin's CPU time by then",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.add_argument("--samples", type=int, default=15, metavar="N", help="starts of each (%(default)s)")


def measure(options: argparse.Namespace) -> Measurement:
    check_namespaces()
    with step(f"start: {options.samples} rounds") as progress:
        samples = asyncio.run(_measure(options.samples, progress))
    series = {name: summarize(values, unit="ms") for name, values in samples.items()}
    start_s = series["start"].p50 / 1000
    return Measurement(
        parameters={"samples": options.samples, "machine": MACHINE},
        series=series,
        goals=[
            Goal(name="start to first slice, p50", value=start_s, limit=1.0, unit="s"),
            Goal(name="start to first slice, p50", value=start_s, limit=0.6, unit="s", stretch=True),
        ],
    )


async def _measure(count: int, progress: Step) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {name: [] for name in _LABELS}
    async with World() as world:
        await _node(world)  # compiles what is not compiled yet
        for done in range(count):
            progress.note(f"{done} of {count}")
            samples["python"].append(await _python(world))
            samples["grpc"].append(await _grpc(world))
            for name, value in (await _node(world)).items():
                samples[name].append(value)
    return samples


async def _python(world: World) -> float:
    process = await world.start_python("print()")
    await process.until_output()
    return await _stop(process, ended_s=time.time())


async def _grpc(world: World) -> float:
    process, _ = await world.start_echo(answer_bytes=1)
    await process.until_output()
    return await _stop(process, ended_s=time.time())


async def _stop(process: Process, *, ended_s: float) -> float:
    await process.kill()
    return 1000 * (ended_s - process.started_s)


async def _node(world: World) -> dict[str, float]:
    """Milliseconds by name, each phase on its own."""
    world.drop_slices()
    process = await world.start_node()
    await process.during(world.until_slices(1))
    first_s = time.time() - process.started_s
    await process.during(world.until_slices(GPUS))
    all_s, cpu_s = time.time() - process.started_s, process.cpu_s()
    found, before_s = {"start": first_s, "all": all_s, "cpu": cpu_s}, 0.0
    for name, event in _PHASES:
        ended_s = await process.until_event(event)
        found[name], before_s = ended_s - before_s, ended_s
    found["api"] = first_s - before_s
    await process.kill()
    return {name: 1000 * seconds for name, seconds in found.items()}


def section(results: Mapping[str, Result]) -> str:
    result = results[""]
    ratio = result.series["start"].p50 / result.series["grpc"].p50
    what = f"""
        From before the fork of the node plugin's process to its first ResourceSlice at the API server: {GPUS}
        simulated GPUs (`{MACHINE}`), TLS and credentials as in a pod, files compiled and in the page cache.
        In turns with two references; a bare gRPC server is what any DRA plugin in Python has to start."""
    reading = f"""
        Ratio to the bare gRPC server: {amount(ratio)}. The phases are medians of their own and need not add
        up. The Go example driver is said to take 1.03 s (literature, another machine)."""
    return "\n\n".join(["## Start", prose(what), goal_list(result), table(result, _LABELS), prose(reading)])
