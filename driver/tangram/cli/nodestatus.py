"""`tangram node status`."""

import argparse
import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tangram.base.settings import API_VERSION
from tangram.cli.nodecommands import (
    IN_A_CLUSTER,
    add_node_flags,
    node_settings,
    printable,
    run_to_the_end,
    write,
)
from tangram.model.quantity import human_bytes

if TYPE_CHECKING:
    from tangram.base.clock import Clock
    from tangram.hardware.workers import Workers
    from tangram.node.settings import NodeSettings
    from tangram.node.status import GpuStatus, Holder, NodeStatus

_DESCRIPTION = f"""\
Shows the GPUs of this node: how they are, which devices they offer, who holds them, which are drained, and
whether the node plugin does its work. It only looks, and works beside a running plugin as well as without
one: who holds what stands in files on the node. A GPU driver that hangs costs half a minute, not the answer.
The names of pods, and what is published, are asked of the API server, if there is one.

{IN_A_CLUSTER.format(command="status")}"""
_EPILOG = """\
examples:
  tangram node status --node-name worker-1
  tangram node status --node-name worker-1 -o json | jq '.gpus[] | select(.holders == [])'
  tangram node status --node-name demo --simulate t4-x4

states of a GPU:
  healthy     nothing is wrong
  warning     it works, and somebody should look at it
  drained     nobody new gets it (tangram node drain-gpu)
  unhealthy   it does not work, or must not be used; nobody new gets it
  gone        a claim holds it, or it is published, and the driver does not know it
  unknown     the hardware cannot be looked at

exit codes:
  0 nothing is wrong    1 internal error    2 bad input or usage    3 something is wrong
"""
_KINDS = {"gpu": "whole", "mig": "MIG", "mps": "MPS", "timeslice": "time-slice"}
_PLUGIN = {"serving": "running", "waiting": "running, not ready"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Gives the command its texts, flags and action."""
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    add_node_flags(parser)
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    settings = node_settings(arguments)

    async def show() -> int:
        from tangram.base.clock import SystemClock  # noqa: PLC0415 - needed only to run
        from tangram.hardware.workers import Workers  # noqa: PLC0415
        from tangram.node.backends import choose_backend  # noqa: PLC0415

        clock = SystemClock()
        status = await look(settings, Workers(choose_backend(settings), clock=clock), clock)
        body = {"apiVersion": API_VERSION, "kind": "NodeStatus", **_fields(status)}
        write(as_text(status), body, arguments.output)
        return 0 if status.is_well else 3

    return run_to_the_end(show)


async def look(settings: "NodeSettings", workers: "Workers", clock: "Clock") -> "NodeStatus":
    """The node as it is now. `workers` are used up."""
    from tangram.node import sight  # noqa: PLC0415 - needed only to run
    from tangram.node.status import node_status  # noqa: PLC0415

    files = sight.look_at_files(settings)
    try:
        # First, while nothing else takes this process's time.
        plugin = await sight.look_at_plugin(settings, clock=clock)
        gpus, api = await asyncio.gather(
            sight.look_at_gpus(settings, files, workers=workers, clock=clock),
            sight.look_at_api(settings, files.held.claims.values(), clock=clock),
        )
    finally:
        await workers.close()
    return node_status(
        sight.Sight(files=files, gpus=gpus, plugin=plugin, api=api),
        node_name=settings.node_name,
        hardware=workers.backend_name,
    )


def _fields(status: "NodeStatus") -> dict[str, object]:
    return {name: getattr(status, field) for name, field in _names(status)}


def _names(status: "NodeStatus") -> Iterable[tuple[str, str]]:
    return zip(status.__struct_encode_fields__, status.__struct_fields__, strict=True)


def as_text(status: "NodeStatus") -> str:
    """Some paragraphs for people."""
    paragraphs = [_heading(status)]
    if status.gpus:
        paragraphs.append(_table(status.gpus))
    if status.problems:
        lines = [line for one in status.problems for line in _problem(one.cause, one.next_step)]
        paragraphs.append("\n".join(lines))
    paragraphs += [f"note: {printable(note)}" for note in status.notes]
    return "\n\n".join(paragraphs) + "\n"


def _heading(status: "NodeStatus") -> str:
    count = sum(gpu.index is not None for gpu in status.gpus)
    parts = [f"node {status.node_name}: {count} GPU{'' if count == 1 else 's'}"]
    if status.hardware == "simulated":
        parts.append("simulated")
    if status.driver_version:
        parts.append(f"driver {status.driver_version}")
    if status.cuda_driver_version:
        parts.append(f"CUDA {status.cuda_driver_version}")
    state = {"serving": "running", "waiting": "running, not ready"}.get(
        status.plugin.state, status.plugin.state
    )
    return f"{', '.join(parts)}\nnode plugin: {state}"


def _table(gpus: Sequence["GpuStatus"]) -> str:
    rows = [("GPU", "UUID", "PRODUCT", "OFFERS", "STATE")]
    below: list[list[str]] = [[]]
    for gpu in gpus:
        rows.append(
            (
                "-" if gpu.index is None else str(gpu.index),
                printable(gpu.uuid),
                printable(gpu.product_name or "-"),
                " ".join(_offer(kind, count) for kind, count in gpu.offers.items()) or "-",
                _state(gpu),
            )
        )
        below.append([f"     {holding(holder)}" for holder in gpu.holders])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row, more in zip(rows, below, strict=True):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines += ["  ".join(cells).rstrip(), *more]
    return "\n".join(lines)


def _offer(kind: str, count: int) -> str:
    return f"{count}x{_KINDS[kind]}" if kind == "mig" else _KINDS[kind]


def _state(gpu: "GpuStatus") -> str:
    parts = [f"{gpu.state}: {gpu.cause}" if gpu.cause else gpu.state]
    if gpu.drained is not None:
        if gpu.state == "drained":
            parts[0] = gpu.drained.text + (f"; {gpu.cause}" if gpu.cause else "")
        else:
            parts.append(gpu.drained.text)
    return printable("; ".join(parts))


def holding(holder: "Holder") -> str:
    """Who holds which part, for people."""
    part = ", ".join([holder.device, *_share(holder)])
    what = "looked at by" if holder.admin_access else f"{_KINDS[holder.kind]} ({part}) held by"
    phase = "" if holder.phase == "prepared" else f", {holder.phase}"
    pods = "" if holder.pods is None else f", pods {' '.join(holder.pods)}" if holder.pods else ", no pod"
    return printable(f"{what} claim {holder.namespace}/{holder.name}{pods}{phase}")


def _share(holder: "Holder") -> Iterable[str]:
    if holder.share is not None:
        if holder.share.memory_bytes:
            yield human_bytes(holder.share.memory_bytes)
        if holder.share.cores:
            yield f"{holder.share.cores} percent"
        if holder.share.replicas:
            yield f"{holder.share.replicas} replica{'' if holder.share.replicas == 1 else 's'}"


def _problem(cause: str, next_step: str) -> list[str]:
    return [f"problem: {printable(cause)}", *([f"   next: {printable(next_step)}"] if next_step else [])]
