"""What the commands about one node share: its settings, silence, time limits, no traceback."""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from io import StringIO

from tangram.base.errors import TangramError
from tangram.cli.flags import add_settings_flags, settings_from
from tangram.cli.results import as_json, as_yaml
from tangram.node.settings import NodeSettings

IN_A_CLUSTER = """\
in a cluster, where the pod of the node plugin has all settings already:
  kubectl --namespace tangram-system get pods --selector app.kubernetes.io/component=node --output wide
  kubectl --namespace tangram-system exec POD -- tangram node {command}
"""
_INTERRUPTED = 130
_SETTINGS = (
    *("node_name", "kubelet_dir", "cdi_root", "driver_root", "driver_root_mount", "kinds"),
    *("simulate", "simulate_state_dir", "kubeconfig", "metrics_address"),
)
"""Those that say where to look; all others are read too, from the environment and the file."""


def add_node_flags(parser: argparse.ArgumentParser) -> None:
    """The settings of the node plugin that say where to look, and the form of the answer."""
    parser.add_argument(
        "-o", "--output", choices=("table", "json", "yaml"), default="table", help="form (default: table)"
    )
    add_settings_flags(parser, NodeSettings, only=_SETTINGS)


def node_settings(arguments: argparse.Namespace) -> NodeSettings:
    """The settings of the node plugin, from the places where it finds them. Raises ConfigurationError."""
    return settings_from(arguments, NodeSettings, per_node=True).settings


def run_to_the_end(work: Callable[[], Awaitable[int]]) -> int:
    """The exit code of `work`; what the layers below log is not printed: the answer says it.

    Raises TangramError; anything else is told in a sentence, with exit code 1.
    """
    from tangram.base.logs import configure_logging  # noqa: PLC0415 - needed only to run
    from tangram.cli.daemon import internal_error  # noqa: PLC0415

    configure_logging(level="error", log_format="console", stream=StringIO())

    async def main() -> int:
        return await work()

    try:
        return asyncio.run(main())
    except TangramError:
        raise
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception as error:  # noqa: BLE001 - an operator in trouble needs a sentence
        return internal_error(error)


def write(text: str, body: object, form: str) -> None:
    """The answer on standard output: `text`, or the body as `form` says."""
    forms: dict[str, Callable[[], str]] = {
        "table": lambda: text,
        "json": lambda: as_json(body, indent=2) + "\n",
        "yaml": lambda: as_yaml(body),
    }
    sys.stdout.write(forms[form]())


def printable(text: str) -> str:
    """Text that others wrote, without what could steer a terminal."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
