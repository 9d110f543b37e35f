"""`tangram playground`."""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

_DESCRIPTION = """\
A cluster to try Tangram in, in one terminal: no Kubernetes, no GPU, no root, no network. API server,
scheduler and kubelets are stand-ins; Tangram's controller and node plugins are the real processes, on
simulated machines. It plays manifests (by default the shipped examples) and shows which GPUs each pod got,
and why. The commands of pods run as processes of this machine, with your rights.
"""
_EPILOG = """\
machines: a100x8, h100x8, dgx1v, t4x4, the name of a shipped description, or a file of your own

examples:
  tangram playground                                    play the shipped examples, and end
  tangram playground --keep                             the same, and stay: kubectl works against it
  tangram playground --machines dgx1v,t4x4 --scenario my-pods.yaml
  tangram playground --output json

exit codes:
  0 played, also if a pod waits    1 a part of the cluster failed    2 bad input    3 a pod failed
  130 ended by Ctrl-C
"""
_EXIT_INTERRUPTED = 130


def configure(parser: argparse.ArgumentParser) -> None:
    """Gives the command its texts, flags and action."""
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.add_argument(
        "--machines", metavar="NAME,…", default="a100x8,dgx1v", help="one node each (default %(default)s)"
    )
    parser.add_argument(
        "--scenario",
        metavar="FILE",
        action="append",
        default=[],
        help="manifests to play instead of the shipped examples; may be given several times",
    )
    parser.add_argument(
        "--keep", action="store_true", help="stay until Ctrl-C, and print the kubeconfig for kubectl"
    )
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="json: a PlaygroundReport"
    )
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    started_s = time.monotonic()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(_EXIT_INTERRUPTED))
    from tangram.playground.app import Options, run  # noqa: PLC0415 - loads the API server's stand-in
    from tangram.playground.machines import parse_machines  # noqa: PLC0415
    from tangram.playground.scenario import load_all, shipped_examples  # noqa: PLC0415

    paths = [Path(name) for name in arguments.scenario] or shipped_examples()
    return run(
        Options(
            machines=parse_machines(arguments.machines),
            scenarios=load_all(paths),
            keep=arguments.keep,
            json=arguments.output == "json",
            started_s=started_s,
            command=os.environ.get("TANGRAM_PLAYGROUND_COMMAND", "tangram playground"),
        )
    )
