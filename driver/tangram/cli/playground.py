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
simulated machines. It plays manifests (by default the shipped examples) or scenarios and shows which GPUs
each pod got, and why. The commands of pods run as processes of this machine, with your rights.
"""
_EPILOG = """\
examples:
  tangram playground                                    play the shipped examples, and end
  tangram playground --keep                             the same, and stay: kubectl works against it
  tangram playground --machines dgx1v,t4x4 --scenario my-pods.yaml
  tangram playground --list-machines
  tangram playground --output json

exit codes:
  0 played, also if a pod waits    1 a part of the cluster failed    2 bad input
  3 a pod or a scenario failed     130 ended by Ctrl-C
"""
_EXIT_INTERRUPTED = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_VERSIONS = ("1.34", "1.35", "1.36", "1.37")
_DEFAULT_MACHINES = "a100x8,dgx1v"


def configure(parser: argparse.ArgumentParser) -> None:
    """Gives the command its texts, flags and action."""
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.add_argument(
        "--machines",
        metavar="NAME,…",
        default="",
        help=f"one node each (default: those of the first scenario, else {_DEFAULT_MACHINES})",
    )
    parser.add_argument(
        "--list-machines", action="store_true", help="print the machines there are, and how to name them"
    )
    parser.add_argument(
        "--kubernetes",
        metavar="VERSION",
        choices=_VERSIONS,
        default="1.36",
        help=f"behave as the API server of this version: {', '.join(_VERSIONS)} (default: 1.36)",
    )
    parser.add_argument(
        "--scenario",
        metavar="FILE",
        action="append",
        default=[],
        help="manifests or a scenario to play instead of the shipped examples; may be given several times",
    )
    parser.add_argument(
        "--keep", action="store_true", help="stay until Ctrl-C, and print the kubeconfig for kubectl"
    )
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="json: a PlaygroundReport"
    )
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    for number in _SIGNALS:
        signal.signal(number, lambda *_: sys.exit(_EXIT_INTERRUPTED))
    # ./hack/try holds them back until somebody listens.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    started_s = float(os.environ.pop("TANGRAM_PLAYGROUND_STARTED_S", time.monotonic()))
    from tangram.playground.machines import listing, parse_machines  # noqa: PLC0415

    if arguments.list_machines:
        print(*listing(), sep="\n")
        return 0
    from tangram.playground.app import Options, run  # noqa: PLC0415 - loads the API server's stand-in
    from tangram.playground.manifests import shipped_examples  # noqa: PLC0415
    from tangram.playground.plans import load_plans  # noqa: PLC0415
    from tangram.playground.scenarios.schema import Scenario  # noqa: PLC0415

    plans = load_plans([Path(name) for name in arguments.scenario] or shipped_examples())
    first = plans[0]
    if arguments.machines or not isinstance(first, Scenario):
        machines = parse_machines(arguments.machines or _DEFAULT_MACHINES)
    else:
        machines = first.machines
    return run(
        Options(
            machines=machines,
            version=arguments.kubernetes,
            plans=plans,
            keep=arguments.keep,
            json=arguments.output == "json",
            started_s=started_s,
            command=os.environ.get("TANGRAM_PLAYGROUND_COMMAND", "tangram playground"),
        )
    )
