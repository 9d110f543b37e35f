"""Which GPUs the settings of a node mean."""

from pathlib import Path

from tangram.base.errors import ConfigurationError, InvalidObjectError
from tangram.hardware.backend import Backend
from tangram.node.settings import NodeSettings


def choose_backend(settings: NodeSettings) -> Backend:
    """The GPUs the settings ask for. Raises ConfigurationError for a machine description that is wrong."""
    if not settings.simulate:
        from tangram.hardware.nvml import NvmlBackend  # noqa: PLC0415 - loads pynvml

        return NvmlBackend(driver_root=Path(settings.driver_root_mount or settings.driver_root))
    from tangram.hardware.simulated import SimulatedBackend  # noqa: PLC0415 - only for --simulate

    try:
        return SimulatedBackend.load(
            settings.simulate,
            node_name=settings.node_name,
            state_directory=Path(settings.simulate_state_dir) if settings.simulate_state_dir else None,
        )
    except InvalidObjectError as error:
        raise ConfigurationError(f"simulate: {error.cause}", next_step=error.next_step) from error
