"""GPUClaimParameters: strict decoding, defaults and validation in one place; the shares that were given."""

from tangram.api.demand import Demand, DeviceFacts, GpuType, Sharing
from tangram.api.grants import Grant, grants_of, is_grant, with_grants
from tangram.api.lowering import demand_of, linked_count, lower
from tangram.api.parameters import GPUClaimParameters, MpsParameters, decode_parameters, merge

__all__ = [
    "Demand",
    "DeviceFacts",
    "GPUClaimParameters",
    "GpuType",
    "Grant",
    "MpsParameters",
    "Sharing",
    "decode_parameters",
    "demand_of",
    "grants_of",
    "is_grant",
    "linked_count",
    "lower",
    "merge",
    "with_grants",
]
