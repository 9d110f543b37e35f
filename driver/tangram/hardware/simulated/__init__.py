"""GPUs that exist only in a machine description: a state machine of what NVML does, with faults on demand.

For tests, the playground and clusters without GPUs; also of other projects (`tangram.testing` re-exports it).
"""

from tangram.hardware.machines.faultplan import CALLS, Call, Fault
from tangram.hardware.simulated.backend import SimulatedBackend
from tangram.hardware.simulated.describing import describe_machine
from tangram.hardware.simulated.faults import Hang

__all__ = ["CALLS", "Call", "Fault", "Hang", "SimulatedBackend", "describe_machine"]
