"""`tangram mps run`."""

import argparse
from collections.abc import Callable

from tangram.cli.flags import add_settings_flags, print_settings, settings_from
from tangram.hardware.mps.settings import MpsSettings

_DESCRIPTION = """\
The supervisor of MPS daemons of one node. For each GPU that claims share through MPS it keeps one
nvidia-cuda-mps-control running, with the limits of the largest share, and tells the node plugin how it does.
It runs apart from the plugin, so that an update of the plugin leaves the CUDA processes of pods alone.
"""
_EPILOG = """\
examples:
  tangram mps run
  tangram mps run --driver-root /run/nvidia/driver --driver-root-mount /driver-root
  tangram mps run --simulated true --kubelet-dir /tmp/kubelet --log-format console

stopped by SIGTERM with exit code 0 it leaves the daemons as they are; in a container they end with it
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Gives the command its texts, flags and action."""
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    add_settings_flags(parser, MpsSettings)
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    loaded = settings_from(arguments, MpsSettings)
    if arguments.print_config:
        print_settings(loaded)
        return 0
    from tangram.base.logs import configure_logging, get_logger  # noqa: PLC0415 - needed only to run
    from tangram.hardware.mps.directory import mps_root  # noqa: PLC0415
    from tangram.hardware.mps.keeper import keep  # noqa: PLC0415

    def work(keeper: str, beat: Callable[[], None]) -> int:
        from tangram.base.errors import TangramError  # noqa: PLC0415
        from tangram.cli.daemon import run_daemon  # noqa: PLC0415
        from tangram.cli.main import print_error  # noqa: PLC0415
        from tangram.hardware.mps.supervisor import run  # noqa: PLC0415

        try:
            return run_daemon("mps", loaded, lambda settings: run(settings, keeper=keeper, beat=beat))
        except TangramError as error:
            print_error(error)
            return error.exit_code

    configure_logging(level=loaded.settings.log_level, log_format=loaded.settings.log_format)
    # Every command has it.
    if loaded.settings.kubeconfig:
        get_logger("mps").warning("setting_without_effect", setting="kubeconfig", why="the API is not used")
    return keep(mps_root(loaded.settings.kubelet_dir), work)
