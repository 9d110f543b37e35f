"""`tangram node drain-gpu`."""

import argparse
import sys
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

if TYPE_CHECKING:
    from tangram.model.gpu import GpuUuid
    from tangram.node.draining import Draining, Outcome
    from tangram.node.drains import Drain
    from tangram.node.settings import NodeSettings
    from tangram.node.status import Holder

_DESCRIPTION = f"""\
Takes a GPU out of allocation: no new claim gets it or a part of it, and claims that are allocated but not yet
prepared are refused on the node. What runs on it runs on; who that is, is listed. The drain is a file on the
node and holds until it is undone, over restarts of the node plugin and of the node. The command returns once
the node plugin has published it, which takes a second or two.

{IN_A_CLUSTER.format(command="drain-gpu UUID")}"""
_EPILOG = """\
examples:
  tangram node drain-gpu GPU-c3bffa54-8b31-5f1a-9f49-0b3a9dfc8931 --reason "fan, ticket 4711"
  tangram node drain-gpu GPU-c3bffa54-8b31-5f1a-9f49-0b3a9dfc8931 --undo

drained GPUs stand in tangram node status, in tangram why, and (Kubernetes 1.36 and newer) as the taint
gpu.resource.admin/drained on their devices. Repeating a drain, or undoing one that is none, changes nothing.

exit codes:
  0 done and published    1 internal error, or the API server cannot be asked    2 bad input or usage
  3 written, but not published: the node plugin does not run, or takes too long
"""
_EXIT_CODES: "dict[Outcome, int]" = {"published": 0, "unknown": 1, "not running": 3, "not in time": 3}


def configure(parser: argparse.ArgumentParser) -> None:
    """Gives the command its texts, flags and action."""
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.add_argument(
        "uuid", metavar="UUID", help="the GPU, as tangram node status or nvidia-smi -L shows it"
    )
    parser.add_argument("--undo", action="store_true", help="give the GPU back")
    parser.add_argument("--reason", metavar="TEXT", default="", help="why, for those who look at it later")
    add_node_flags(parser)
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    settings = node_settings(arguments)

    async def work() -> int:
        return await _work(arguments, settings)

    return run_to_the_end(work)


async def _work(arguments: argparse.Namespace, settings: "NodeSettings") -> int:
    from tangram.base.clock import SystemClock  # noqa: PLC0415 - needed only to run
    from tangram.hardware.workers import Workers  # noqa: PLC0415
    from tangram.node.backends import choose_backend  # noqa: PLC0415
    from tangram.node.draining import Draining, check_reason  # noqa: PLC0415
    from tangram.node.status import holders  # noqa: PLC0415

    clock = SystemClock()
    reason = check_reason(arguments.reason)
    draining = Draining(settings, clock=clock, tell=lambda text: print(text, file=sys.stderr, flush=True))
    uuid = await draining.find(arguments.uuid, lambda: Workers(choose_backend(settings), clock=clock))
    changed = True
    if arguments.undo:
        changed = draining.give_back(uuid)
    else:
        draining.drain(uuid, reason)
    outcome = await draining.published(uuid, drained=not arguments.undo)
    seen = await draining.look()
    drain, held = seen.files.drains.get(uuid), holders(seen, uuid)
    body = {
        "apiVersion": API_VERSION,
        "kind": "GpuDrain",
        "uuid": uuid,
        "drained": drain,
        "outcome": outcome,
        "problem": draining.problem,
        "published": (seen.api.published or {}).get(uuid),
        "holders": held,
    }
    lines = [_first(uuid, drain, changed=changed), _outcome(outcome, draining, undo=arguments.undo)]
    lines += _holders(held) if drain is not None else []
    write("\n".join(lines) + "\n", body, arguments.output)
    return _EXIT_CODES[outcome]


def _first(uuid: "GpuUuid", drain: "Drain | None", *, changed: bool) -> str:
    if drain is not None:
        return f"GPU {uuid} is {printable(drain.text)}"
    return f"GPU {uuid} is given back" if changed else f"GPU {uuid} was not drained"


def _outcome(outcome: "Outcome", draining: "Draining", *, undo: bool) -> str:
    effect = "new claims may get it again" if undo else "no new claim gets it"
    return {
        "published": f"published: {effect}",
        "not running": f"the node plugin does not run: {effect} once it has started; until then its devices"
        " are published as they were",
        "not in time": f"not published yet: {effect} once it is; see tangram node status, and its log",
        "unknown": f"whether it is published is not known: {printable(draining.problem)}",
    }[outcome]


def _holders(held: "tuple[Holder, ...]") -> list[str]:
    from tangram.cli.nodestatus import holding  # noqa: PLC0415 - the same words

    if not held:
        return ["nobody holds a part of it"]
    return ["still held; delete the pods to free it:", *(f"  {holding(holder)}" for holder in held)]
