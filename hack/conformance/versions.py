"""The versions of Kubernetes' allocator that are asked, and what differs in asking them."""

from collections.abc import Sequence
from dataclasses import dataclass

from clusterlib.errors import ClusterError


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version of the module k8s.io/dynamic-resource-allocation, and the preset of ours that copies it.

    `features` are those that problems use, `default_features` those that the scheduler of this version sets
    with default feature gates.
    """

    kubernetes: str
    module_version: str
    preset: str
    features: tuple[str, ...]
    default_features: tuple[str, ...]
    build_tags: tuple[str, ...] = ()
    sorts: bool = True
    """Whether there is a variant that takes pools and slices in a defined order."""
    counters_beside_devices: bool = False
    """Whether counter sets stand in the slice of their devices (only 1.34), or in slices of their own."""

    def ordered(self, features: Sequence[str]) -> bool:
        """Whether the variant that decides with these features has a defined order (`stable` has none)."""
        return self.sorts and not set(features) <= _STABLE

    def preset_with(self, features: Sequence[str]) -> str:
        """For `tangram allocate --features`."""
        return ",".join((self.preset, "none", *features))

    def upstream(self, features: Sequence[str]) -> list[str]:
        """The fields of this version's `structured.Features`."""
        split = (
            {"DeviceBindingAndStatus": ("DeviceBinding", "DeviceStatus")}
            if "k8s34" in self.build_tags
            else {}
        )
        return [field for name in features for field in split.get(name, (name,))]


_BASE = ("AdminAccess", "PrioritizedList")
_STABLE = {*_BASE, "PartitionableDevices", "DeviceTaints"}
_BETA = (*_BASE, "PartitionableDevices", "DeviceTaints", "DeviceBindingAndStatus", "ConsumableCapacity")
_ALPHA = ("ListTypeAttributes", "CompatibilityGroups", "OptionalNodeOperations", "DerivedAttributes")

VERSIONS = {
    version.kubernetes: version
    for version in (
        Version(
            kubernetes="1.34",
            module_version="v0.34.13",
            preset="k8s-1.34",
            features=_BETA,
            default_features=_BASE,
            build_tags=("k8s34",),
            sorts=False,
            counters_beside_devices=True,
        ),
        Version(
            kubernetes="1.35",
            module_version="v0.35.10",
            preset="k8s-1.35",
            features=_BETA,
            default_features=_BASE,
            sorts=False,
        ),
        Version(
            kubernetes="1.36",
            module_version="v0.36.3",
            preset="k8s-1.36",
            features=(*_BETA, "ListTypeAttributes"),
            default_features=_BETA,
        ),
        Version(
            kubernetes="1.36.6",
            module_version="v0.36.6",
            preset="k8s-1.36.6",
            features=(*_BETA, "ListTypeAttributes"),
            default_features=_BETA,
        ),
        Version(
            kubernetes="1.37",
            module_version="v0.37.2",
            preset="k8s-1.37",
            features=(*_BETA, "FractionalCapacityRange", *_ALPHA),
            default_features=(*_BETA, "FractionalCapacityRange"),
        ),
    )
}


def version_of(name: str) -> Version:
    """Of "1.36", "1.36.3", "k8s-1.36" or "v0.36.3". Raises ClusterError."""
    for version in VERSIONS.values():
        module = version.module_version
        if name in {version.kubernetes, version.preset, module, module.replace("v0.", "1.", 1)}:
            return version
    raise ClusterError(
        f"there is no oracle of version {name!r}", next_step=f"choose from {', '.join(VERSIONS)}", exit_code=2
    )
