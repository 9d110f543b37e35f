"""`tangram node run`."""

import argparse

from tangram.cli.flags import add_settings_flags, print_settings, settings_from
from tangram.node.settings import NodeSettings

_DESCRIPTION = """\
The kubelet plugin of one node. It finds the GPUs, publishes them as ResourceSlices, registers with the
kubelet and prepares the claims of pods: each container gets its GPUs through a CDI file. What it holds is on
disk, so that it may be killed and restarted at any time while pods run.
"""
_EPILOG = """\
examples:
  tangram node run --node-name worker-1
  tangram node run --node-name demo --simulate a100-sxm4-80gb-x8 --kubeconfig ~/.kube/config
  TANGRAM_NODE_NAME=worker-1 tangram node run --config /etc/tangram/node.yaml --print-config

settings file (YAML; keys as printed by --print-config; `nodes` overrides by node name):
  allocator: controller
  rescanIntervalS: 30
  nodes:
    autoscaled-1: {allocator: scheduler}

stops within two seconds of SIGTERM with exit code 0; its ResourceSlices stay, so that a restart leaves no gap
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Gives the command its texts, flags and action."""
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    add_settings_flags(parser, NodeSettings)
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    loaded = settings_from(arguments, NodeSettings, per_node=True)
    if arguments.print_config:
        print_settings(loaded)
        return 0
    from tangram.cli.daemon import exit_on_early_signal, run_daemon  # noqa: PLC0415 - needed only to run

    exit_on_early_signal()
    from tangram.node.app import run  # noqa: PLC0415 - loads gRPC and the Kubernetes client

    return run_daemon("node", loaded, run)
