"""CDI: what a container runtime adds to a container that uses a claim (Container Device Interface spec).

One file per claim, kind `gpu.resource.admin/claim`, one CDI device per allocated device. The edits of the
file go, once, to every container that gets any device of the claim; those of a device only to containers that
get that device. Kubelet passes all CDI ids of a claim, or of one request if the container names it.

Environment of the container. Edits are fixed text and a later one wins, so each variable must have one value
per claim, or a name of its own:

- `NVIDIA_VISIBLE_DEVICES=void` keeps an NVIDIA runtime hook from adding GPUs by itself.
- `TANGRAM_CLAIM_NAME`, `TANGRAM_CLAIM_NAMESPACE`, `TANGRAM_CLAIM_UID`: the claim.
- `TANGRAM_GPU_UUIDS`, `TANGRAM_MIG_UUIDS` (comma lists): what the claim holds. A container that uses the
  whole claim, or a claim of one request, sees exactly these.
- `TANGRAM_GPU_UUIDS_<REQUEST>`, `TANGRAM_MIG_UUIDS_<REQUEST>`: what one request holds, set only in containers
  that got this request. All of them together are exactly what the container sees of the claim. `<REQUEST>` is
  the request's name in upper case with `_` for `-`.

A container that uses several claims gets the devices of all, but these variables of the last one only.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tangram.base.atomicfile import remove_leftovers, state_error, write_atomically
from tangram.base.errors import InvalidObjectError
from tangram.hardware.backend import DeviceNode

VENDOR = "gpu.resource.admin"
KIND = f"{VENDOR}/claim"
_CLAIM_UID = re.compile(r"[0-9A-Za-z](?:[0-9A-Za-z-]{0,62}[0-9A-Za-z])?")
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_PERMISSIONS = "rw"
"""Containers open GPU nodes; none needs to make them (`m`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A bind mount. `container_path` is where the container sees it."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ("ro", "nosuid", "nodev", "rbind", "rprivate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A program that the runtime runs on the host while it makes the container.

    `args` begins with the program's own name. `env` (`NAME=value`) is all the environment it gets and is
    never empty: a runtime lets a hook without one inherit the container's, `LD_PRELOAD` included.
    """

    path: str
    args: tuple[str, ...]
    env: tuple[str, ...] = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin",)
    name: str = "createContainer"
    timeout_s: int = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiEdits:
    """What is added to a container. `env` as `NAME=value`."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()

    def __add__(self, other: "CdiEdits") -> "CdiEdits":
        return CdiEdits(
            env=self.env + other.env,
            device_nodes=self.device_nodes + other.device_nodes,
            mounts=self.mounts + other.mounts,
            hooks=self.hooks + other.hooks,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiDevice:
    """An allocated device. `name` is its name in the ResourceSlice, `requests` the base names of the claim's
    requests it was allocated for. Exactly one of `gpu_uuid` and `mig_uuid` is set. `edits`: what else a
    container with this device needs.
    """

    name: str
    requests: tuple[str, ...]
    device_nodes: tuple[DeviceNode, ...]
    gpu_uuid: str = ""
    mig_uuid: str = ""
    edits: CdiEdits = field(default_factory=CdiEdits)


def cdi_device_id(*, claim_uid: str, device: str) -> str:
    """The qualified name by which kubelet asks the runtime for a device of a claim."""
    return f"{KIND}={_cdi_name(claim_uid, device)}"


def claim_spec(
    *,
    claim_uid: str,
    claim_name: str,
    claim_namespace: str,
    devices: Sequence[CdiDevice],
    common: CdiEdits,
) -> dict[str, Any]:
    """The CDI file of a claim; `common` is what every container with a GPU of this node needs.

    InvalidObjectError for a UID, device or request that cannot be part of a file, CDI or variable name.
    """
    claim = f"claim {claim_namespace}/{claim_name}"
    if not devices:
        raise InvalidObjectError("no device to describe", object_name=claim)
    names = [device.name for device in devices]
    if duplicates := {name for name in names if names.count(name) > 1}:
        raise InvalidObjectError(f"device {min(duplicates)} stands twice", object_name=claim)
    env = (
        "NVIDIA_VISIBLE_DEVICES=void",
        f"TANGRAM_CLAIM_NAME={claim_name}",
        f"TANGRAM_CLAIM_NAMESPACE={claim_namespace}",
        f"TANGRAM_CLAIM_UID={_checked_uid(claim_uid)}",
        *_uuid_variables(devices),
    )
    by_request: dict[str, list[CdiDevice]] = {}
    for device in devices:
        for request in dict.fromkeys(device.requests):
            by_request.setdefault(_checked_label(request, claim, "request"), []).append(device)
    spec = {
        "kind": KIND,
        "containerEdits": _edits(CdiEdits(env=env) + common),
        "devices": [
            {
                "name": _cdi_name(claim_uid, device.name),
                "containerEdits": _edits(
                    CdiEdits(
                        env=tuple(
                            variable
                            for request in dict.fromkeys(device.requests)
                            for variable in _uuid_variables(by_request[request], request)
                        ),
                        device_nodes=device.device_nodes,
                    )
                    + device.edits
                ),
            }
            for device in devices
        ],
    }
    return {"cdiVersion": minimum_version(spec), **spec}


def minimum_version(spec: Mapping[str, Any]) -> str:
    """The lowest CDI version that has all fields in use, so that old runtimes load the file too.

    Of what is written here only a device's `hostPath`, and a device name that begins with a digit, are newer
    than 0.3.0 (both 0.5.0).
    """
    all_edits = [spec["containerEdits"], *(device["containerEdits"] for device in spec["devices"])]
    newer = any(device["name"][0].isdigit() for device in spec["devices"]) or any(
        "hostPath" in node for edits in all_edits for node in edits.get("deviceNodes", ())
    )
    return "0.5.0" if newer else "0.3.0"


class CdiDirectory:
    """The directory the container runtime reads CDI files from; others' files in it are never touched."""

    def __init__(self, root: Path) -> None:
        """Removes what killed processes left of files half written."""
        self._root = root
        remove_leftovers(root, name_prefix=f"{VENDOR}_")

    def write(self, claim_uid: str, spec: Mapping[str, Any]) -> None:
        """Puts the file of a claim there, whole or not at all; does nothing if it is there already.

        StateError where the file system refuses.
        """
        path = self._path(claim_uid)
        data = msgspec.json.format(msgspec.json.encode(spec), indent=1) + b"\n"
        try:
            if path.read_bytes() == data:
                return
        except OSError:
            pass  # absent or unreadable: writing tells
        # Not synced: the directory is usually in memory, and a reboot has every claim prepared anew.
        write_atomically(path, data, mode=0o600, sync=False)

    def remove(self, claim_uid: str) -> None:
        """Takes the file of a claim away; done already is done. StateError where the file system refuses."""
        path = self._path(claim_uid)
        try:
            path.unlink(missing_ok=True)
        except NotADirectoryError:
            return
        except OSError as error:
            raise state_error(error, path, "cannot be removed") from error

    def list(self) -> tuple[str, ...]:
        """The UIDs of the claims that have a file, sorted. StateError if the directory cannot be read."""
        try:
            names = os.listdir(self._root)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise state_error(error, self._root, "cannot be read") from error
        uids = (
            name.removeprefix(f"{VENDOR}_").removesuffix(".json")
            for name in names
            if name.startswith(f"{VENDOR}_") and name.endswith(".json")
        )
        return tuple(sorted(uid for uid in uids if _CLAIM_UID.fullmatch(uid)))

    def _path(self, claim_uid: str) -> Path:
        return self._root / f"{VENDOR}_{_checked_uid(claim_uid)}.json"


def _cdi_name(claim_uid: str, device: str) -> str:
    return f"{_checked_uid(claim_uid)}-{_checked_label(device, f'claim {claim_uid}', 'device')}"


def _checked_uid(claim_uid: str) -> str:
    """The UID becomes part of file names: nothing but letters, digits and dashes."""
    if not _CLAIM_UID.fullmatch(claim_uid):
        raise InvalidObjectError(
            f"{claim_uid[:80]!r} is not a UID", object_name="claim", field="metadata.uid"
        )
    return claim_uid


def _checked_label(text: str, object_name: str, what: str) -> str:
    if not _LABEL.fullmatch(text):
        raise InvalidObjectError(f"{text[:80]!r} is not the name of a {what}", object_name=object_name)
    return text


def _uuid_variables(devices: Sequence[CdiDevice], request: str = "") -> tuple[str, str]:
    suffix = f"_{request.upper().replace('-', '_')}" if request else ""
    # Two devices of a claim may be two shares of one GPU.
    gpus = ",".join(dict.fromkeys(device.gpu_uuid for device in devices if device.gpu_uuid))
    migs = ",".join(dict.fromkeys(device.mig_uuid for device in devices if device.mig_uuid))
    return f"TANGRAM_GPU_UUIDS{suffix}={gpus}", f"TANGRAM_MIG_UUIDS{suffix}={migs}"


def _edits(edits: CdiEdits) -> dict[str, Any]:
    """The JSON form: no empty lists, which older runtimes take and newer ones may not."""
    form = {
        "env": list(edits.env),
        "deviceNodes": [_node(node) for node in edits.device_nodes],
        "mounts": [
            {
                "hostPath": mount.host_path,
                "containerPath": mount.container_path,
                "options": list(mount.options),
            }
            for mount in edits.mounts
        ],
        "hooks": [
            {
                "hookName": hook.name,
                "path": hook.path,
                "args": list(hook.args),
                "env": list(hook.env),
                "timeout": hook.timeout_s,
            }
            for hook in edits.hooks
        ],
    }
    return {key: value for key, value in form.items() if value}


def _node(node: DeviceNode) -> dict[str, Any]:
    """Without numbers the runtime reads type, major and minor from the host's node, at each start."""
    form: dict[str, Any] = {"path": node.path}
    if node.host_path is not None and node.host_path != node.path:
        form["hostPath"] = node.host_path
    if node.major is not None and node.minor is not None:
        form |= {"type": node.kind, "major": node.major, "minor": node.minor}
    return form | {"permissions": _PERMISSIONS}
