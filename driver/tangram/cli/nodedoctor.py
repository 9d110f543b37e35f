"""`tangram node doctor`."""

import argparse
import os
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tangram.base.errors import ConfigurationError
from tangram.base.settings import API_VERSION, Loaded, load_settings
from tangram.cli.flags import settings_from
from tangram.cli.nodecommands import IN_A_CLUSTER, add_node_flags, printable, run_to_the_end, write
from tangram.node.settings import NodeSettings

if TYPE_CHECKING:
    from tangram.node.doctor.check import Check

_DESCRIPTION = f"""\
Looks for what keeps this node from serving GPUs, and says of each cause what mends it: settings, directories
of kubelet and container runtime, the node plugin, held files, the GPU driver (files, kernel module, device
nodes, MIG, NVLink fabric), GPUs that are not well, MPS, and the API server with the plugin's rights. It
changes nothing, and works beside a running plugin as well as without one. What hangs is told so, after half a
minute at most.

{IN_A_CLUSTER.format(command="doctor")}"""
_EPILOG = """\
examples:
  tangram node doctor --node-name worker-1
  tangram node doctor --node-name worker-1 -o json | jq '.checks[] | select(.result == "fail")'
  tangram node doctor --node-name demo --simulate t4-x4

results of a check:
  ok      nothing is wrong
  warn    it works, and somebody should look at it
  fail    pods will not get what they should
  skip    it does not concern this node, or cannot be told

exit codes:
  0 no check failed    1 internal error    2 bad input or usage    3 a check failed
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Gives the command its texts, flags and action."""
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    add_node_flags(parser)
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    from tangram.node.doctor.check import fail, ok, warn  # noqa: PLC0415 - needed only to run

    try:
        loaded = settings_from(arguments, NodeSettings, per_node=True)
        checks = [
            warn("settings", f"suspicious environment: {text}", fix="correct or remove the variable")
            for text in loaded.warnings
        ] or [ok("settings", "read from flags, environment and file")]
    except ConfigurationError as error:
        loaded = _without_file(arguments, error)
        checks = [fail("settings", error.cause, fix=error.next_step)]

    async def look() -> int:
        from tangram.base.clock import SystemClock  # noqa: PLC0415
        from tangram.hardware.workers import Workers  # noqa: PLC0415
        from tangram.node.backends import choose_backend  # noqa: PLC0415
        from tangram.node.doctor.run import examine  # noqa: PLC0415

        settings, clock = loaded.settings, SystemClock()
        workers = Workers(choose_backend(settings), clock=clock)
        found = [*checks, *await examine(settings, workers=workers, clock=clock)]
        body = {
            "apiVersion": API_VERSION,
            "kind": "NodeDoctorReport",
            "nodeName": settings.node_name,
            "checks": found,
        }
        write(as_text(settings.node_name, found), body, arguments.output)
        return 3 if any(check.result == "fail" for check in found) else 0

    return run_to_the_end(look)


def _without_file(arguments: argparse.Namespace, error: ConfigurationError) -> Loaded[NodeSettings]:
    """The settings without their file, which the plugin cannot read either; `error` where that is not it."""
    flags = {
        name.removeprefix("setting."): text
        for name, text in vars(arguments).items()
        if name.startswith("setting.")
    }
    try:
        return load_settings(NodeSettings, flags=flags, environment=os.environ)
    except ConfigurationError:
        raise error from None


def as_text(node_name: str, checks: "Sequence[Check]") -> str:
    """A line for each check, with what mends it below."""
    width = max(len(check.name) for check in checks)
    lines = [f"node {node_name}"]
    for check in checks:
        lines.append(printable(f"{check.result.upper():4}  {check.name:{width}}  {check.text}"))
        if check.fix:
            lines.append(printable(f"{'':6}{'':{width}}  fix: {check.fix}"))
    counts = Counter(check.result for check in checks)
    lines.append(f"{counts['ok']} ok, {counts['warn']} warn, {counts['fail']} fail, {counts['skip']} skipped")
    return "\n".join(lines) + "\n"
