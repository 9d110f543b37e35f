"""Public fakes for tests and the playground."""

from tangram.hardware.simulated import Fault, Hang, SimulatedBackend

__all__ = ["Fault", "Hang", "SimulatedBackend"]
