"""GPUClaimParameters: strict decoding, defaults and validation in one place."""

from tangram.api.demand import Demand, DeviceFacts, GpuType, Sharing
from tangram.api.lowering import demand_of, linked_count, lower
from tangram.api.parameters import GPUClaimParameters, MpsParameters, decode_parameters, merge

__all__ = [
    "Demand",
    "DeviceFacts",
    "GPUClaimParameters",
    "GpuType",
    "MpsParameters",
    "Sharing",
    "decode_parameters",
    "demand_of",
    "linked_count",
    "lower",
    "merge",
]
