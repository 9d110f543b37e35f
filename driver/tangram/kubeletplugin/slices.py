"""The desired state: pools made of slices, their names, and their form on the wire."""

import copy
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

JsonObject = dict[str, Any]

_MAXIMUM_NAME = 253


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One ResourceSlice: devices or counter sets, never both, in the form of `resource.k8s.io/v1`.

    A taint's `timeAdded`, where given, is in whole seconds; where not, the API server's is kept.
    """

    devices: tuple[Mapping[str, Any], ...] = ()
    shared_counters: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The slices of a pool, the ones to allocate from first in front; none: the pool exists and is empty."""

    slices: tuple[Slice, ...] = ()

    def copy(self) -> "Pool":
        """A copy that shares nothing with what the caller may change."""
        return copy.deepcopy(self)

    def specs(self, *, driver_name: str, node_name: str, pool_name: str) -> list[JsonObject]:
        """The `spec` of each slice, without the pool's generation.

        Of devices and counters only what there is: the API refuses a slice that names both, even empty.
        """
        slices = self.slices or (Slice(),)
        common = {"driver": driver_name, "nodeName": node_name}
        return [
            common
            | {"pool": {"name": pool_name, "resourceSliceCount": len(slices)}}
            | ({"devices": list(each.devices)} if each.devices else {})
            | ({"sharedCounters": list(each.shared_counters)} if each.shared_counters else {})
            for each in slices
        ]


def slice_name(*, index: int, driver_name: str, node_name: str, pool_name: str) -> str:
    """`<index, five hex digits>-<driver>-<node>-<digest>`: its order is the order of preference.

    kube-scheduler (from 1.36) takes the slices of a pool in the order of their names. The name depends on
    nothing but what the slice is: a create that is repeated after a lost answer, or made by two processes
    during a rolling update, cannot make a second slice, and a restarted process recognises its own. The
    digest keeps pools of one node apart, and names that had to be cut.
    """
    digest = hashlib.sha256(f"{driver_name}\0{node_name}\0{pool_name}".encode()).hexdigest()[:8]
    head = f"{index:05x}-{driver_name}-{node_name}"[: _MAXIMUM_NAME - len(digest) - 1]
    return f"{head.rstrip('.-')}-{digest}"
