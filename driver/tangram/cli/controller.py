"""`tangram controller run`."""

import argparse

from tangram.cli.flags import add_settings_flags, print_settings, settings_from
from tangram.controller.settings import ControllerSettings

_DESCRIPTION = """\
The allocator of the cluster. It watches pods with claims for Tangram's device classes, chooses the node and
the devices that fit best, and writes the allocation into each claim; kube-scheduler then binds the pod there.
Of several replicas one is active, elected by a Lease.
"""
_EPILOG = """\
examples:
  tangram controller run
  tangram controller run --kubeconfig ~/.kube/config --namespace tangram-system --metrics-address ""
  tangram controller run --config /etc/tangram/controller.yaml --print-config

stops within two seconds of SIGTERM with exit code 0 and hands the Lease back
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Gives the command its texts, flags and action."""
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    add_settings_flags(parser, ControllerSettings)
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    loaded = settings_from(arguments, ControllerSettings)
    if arguments.print_config:
        print_settings(loaded)
        return 0
    from tangram.cli.daemon import exit_on_early_signal, run_daemon  # noqa: PLC0415 - needed only to run

    exit_on_early_signal()
    from tangram.controller.app import run  # noqa: PLC0415 - loads the Kubernetes client

    return run_daemon("controller", loaded, run)
