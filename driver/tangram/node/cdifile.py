"""The CDI file of a held claim: what the runtime gives its containers."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from tangram.base.errors import DriverUnavailableError
from tangram.hardware.backend import DeviceNode
from tangram.hardware.cdi import VENDOR, CdiDevice, CdiDirectory, CdiEdits, claim_spec
from tangram.kubeletplugin.driver import ClaimReference
from tangram.model.devices import gpu_device_name, short_ids
from tangram.node.held import HeldClaim, HeldDevice
from tangram.node.inventory import Inventory

_MAXIMUM_FILE_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """What a container gets of a device beyond the nodes of its GPU. `mig_uuid`: of a MIG device."""

    mig_uuid: str = ""
    device_nodes: tuple[DeviceNode, ...] = ()
    edits: CdiEdits = field(default_factory=CdiEdits)


_NO_EXTRAS: Mapping[str, Extra] = MappingProxyType({})


def _devices(held: HeldClaim, inventory: Inventory, extras: Mapping[str, Extra]) -> Iterator[CdiDevice]:
    """One CDI device of each device, also where a claim has several shares of it."""
    names = dict.fromkeys(device.device for device in held.devices)
    for name in names:
        shares = [device for device in held.devices if device.device == name]
        requests = tuple(dict.fromkeys(request for each in shares for request in each.request_names))
        device = msgspec.structs.replace(shares[0], request_names=requests)
        yield _device(device, inventory, extras.get(name, Extra()))


def _device(device: HeldDevice, inventory: Inventory, extra: Extra) -> CdiDevice:
    return CdiDevice(
        name=device.device,
        requests=tuple(name.partition("/")[0] for name in device.request_names),
        device_nodes=inventory.device_nodes(device.uuid) + extra.device_nodes,
        gpu_uuid="" if extra.mig_uuid else device.uuid,
        mig_uuid=extra.mig_uuid,
        edits=extra.edits,
    )


class CdiFiles:
    """CDI files of held claims. Blocking; every method may raise StateError."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._directory = CdiDirectory(root)

    def write(self, held: HeldClaim, inventory: Inventory, extras: Mapping[str, Extra] = _NO_EXTRAS) -> None:
        """Writes the claim's file, unless it stands there like that.

        DriverUnavailableError if a device node is not known: a container without it would fail without a
        reason.
        """
        common = CdiEdits(device_nodes=inventory.control_nodes) + inventory.driver_edits
        spec = claim_spec(
            claim_uid=held.uid,
            claim_name=held.name,
            claim_namespace=held.namespace,
            devices=list(_devices(held, inventory, extras)),
            common=common,
        )
        self._directory.write(held.uid, spec)

    def restore(
        self, held: HeldClaim, inventory: Inventory | None, extras: Mapping[str, Extra] = _NO_EXTRAS
    ) -> None:
        """Makes sure the claim's file stands as it should.

        While the GPUs are not known (any more), a file that is there is as good as can be.
        DriverUnavailableError if there is none either.
        """
        problem = DriverUnavailableError(
            "the GPUs of this node are not known yet",
            next_step="see the node plugin's log for the GPU driver",
        )
        if inventory is not None:
            try:
                self.write(held, inventory, extras)
            except DriverUnavailableError as error:
                problem = error
            else:
                return
        if not self._path(held.uid).is_file():
            raise DriverUnavailableError(
                f"the CDI file of {held.label} is missing and cannot be written: {problem.cause}",
                next_step=problem.next_step,
            )

    def remove(self, uid: str) -> None:
        """Removes the claim's file; none there is no error."""
        self._directory.remove(uid)

    def uids(self) -> frozenset[str]:
        """The claims that have a file."""
        return frozenset(self._directory.list())

    def owner(self, uid: str) -> ClaimReference | None:
        """The claim a file was written for, from the environment in it; None if that cannot be read."""
        environment = self._environment(uid)
        namespace, name = environment.get("TANGRAM_CLAIM_NAMESPACE"), environment.get("TANGRAM_CLAIM_NAME")
        if not namespace or not name or environment.get("TANGRAM_CLAIM_UID") != uid:
            return None
        return ClaimReference(namespace=namespace, name=name, uid=uid)

    def gpus(self, uid: str, inventory: Inventory | None = None) -> frozenset[str]:
        """UUIDs of the GPUs that a file gives to containers, whole or in part; none if that cannot be read.

        A MIG device's GPU is told by its name: `inventory` says whose it is.
        """
        whole = frozenset(self._environment(uid).get("TANGRAM_GPU_UUIDS", "").split(",")) - {""}
        if inventory is None:
            return whole
        ids = short_ids(gpu.uuid for gpu in inventory.machine.gpus)
        names = {gpu_device_name(short): uuid for uuid, short in ids.items()}
        devices = [name.removeprefix(f"{uid}-") for name in self._names(uid)]
        return whole | {names[base] for name in devices if (base := "-".join(name.split("-")[:2])) in names}

    def migs(self, uid: str) -> frozenset[str]:
        """UUIDs of the MIG devices that a file gives to containers; none if that cannot be read."""
        return frozenset(self._environment(uid).get("TANGRAM_MIG_UUIDS", "").split(",")) - {""}

    def _names(self, uid: str) -> list[str]:
        devices = self._spec(uid).get("devices")
        return [
            device["name"]
            for device in (devices if isinstance(devices, list) else [])
            if isinstance(device, dict) and isinstance(device.get("name"), str)
        ]

    def _environment(self, uid: str) -> dict[str, str]:
        """The variables that a file sets; none if it cannot be read."""
        try:
            return dict(entry.split("=", 1) for entry in self._spec(uid)["containerEdits"]["env"])
        except (ValueError, KeyError, TypeError, AttributeError):
            return {}

    def _spec(self, uid: str) -> dict[str, Any]:
        try:
            with self._path(uid).open("rb") as file:
                spec = json.loads(file.read(_MAXIMUM_FILE_BYTES))
        except (OSError, ValueError, RecursionError):
            return {}
        return spec if isinstance(spec, dict) else {}

    def _path(self, uid: str) -> Path:
        return self._root / f"{VENDOR}_{uid}.json"


def driver_edits_of(
    backend_name: str, *, driver_root: Path, visible_root: Path, plugin_directory: Path
) -> Callable[[], CdiEdits]:
    """What looks up the driver's files for containers; a simulated GPU has none.

    `driver_root` is a path on the host, `visible_root` where this process sees it.
    """
    if backend_name == "simulated":
        return CdiEdits
    from tangram.hardware.driverfiles import driver_edits, install_ldcache_script  # noqa: PLC0415

    def look_up() -> CdiEdits:
        script = install_ldcache_script(plugin_directory)
        return driver_edits(driver_root=driver_root, visible_root=visible_root, ldcache_script=script)

    return look_up
