"""Checks of what plugin, kubelet and container runtime share on a node: directories, sockets, files, disk."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from tangram import DRIVER_NAME
from tangram.base.errors import TangramError
from tangram.node.cdifile import CdiFiles
from tangram.node.doctor.check import Check, fail, ok, skip, warn
from tangram.node.settings import NodeSettings
from tangram.node.sight import Files, Plugin, listens, plugin_directory

LITTLE_BYTES = 256 * 2**20
"""Less is told: the kubelet evicts pods of a node whose disk is nearly full."""
TOO_LITTLE_BYTES = 4 * 2**20
"""Held state of hundreds of claims, and their CDI files."""
_TOO_FEW_FILES = 64
_PLUGIN_LOG = "kubectl --namespace tangram-system logs POD, with the pod of this node"


def rights(euid: int) -> Iterator[Check]:
    """Whose rights this process has."""
    if euid == 0:
        yield ok("rights", "root")
    else:
        yield warn(
            "rights",
            f"user {euid}, not root: files of the kubelet, and some answers of the driver, are out of reach",
            fix="run it as root, or in the pod of the node plugin",
        )


def directories(settings: NodeSettings) -> Iterator[Check]:
    """The directories through which plugin, kubelet and runtime meet."""
    yield _directory(
        "plugin-directory",
        plugin_directory(settings),
        fix="start the node plugin, which makes it; in its pod it is a mount of the host's directory",
    )
    yield _directory(
        "plugins-registry",
        Path(settings.kubelet_dir) / "plugins_registry",
        fix="set kubeletDir to the kubelet's --root-dir; in the plugin's pod it is a mount of the host's",
    )
    yield _cdi_root(Path(settings.cdi_root))


def _cdi_root(path: Path) -> Check:
    fix = (
        "have the container runtime read it: cdi_spec_dirs of containerd (with enable_cdi = true before 2.0)"
        " or of CRI-O"
    )
    if not path.exists():
        text = f"there is no directory {path} yet: the plugin makes it for the first claim"
        return warn("cdi-root", text, fix=fix)
    return _directory("cdi-root", path, fix=f"make it a directory, and {fix}")


def _directory(name: str, path: Path, *, fix: str) -> Check:
    if not path.is_dir():
        return fail(name, f"there is no directory {path}", fix=fix)
    if not os.access(path, os.W_OK | os.X_OK):
        return fail(name, f"{path} cannot be written", fix="mount it writable, and run the plugin as root")
    return ok(name, str(path))


def processes(settings: NodeSettings, plugin: Plugin) -> Iterator[Check]:
    """The plugin's process and its sockets."""
    if plugin.state == "not running":
        left = sorted(plugin_directory(settings).glob("dra*.sock"))
        what = (
            f"nobody listens on {left[0]}" if left else f"there is no {plugin_directory(settings)}/dra*.sock"
        )
        yield fail(
            "plugin",
            f"the node plugin does not run: {what}",
            fix=f"look why its pod does not run: kubectl --namespace tangram-system describe pod POD;"
            f" {_PLUGIN_LOG}",
        )
    elif plugin.state == "not answering":
        yield fail(
            "plugin",
            f"its socket is there, and http://{settings.metrics_address}/readyz does not answer",
            fix=f"{_PLUGIN_LOG}; delete its pod to start it again: running pods are not disturbed",
        )
    elif plugin.waiting_for:
        yield fail("plugin", f"it waits for {', '.join(plugin.waiting_for)}", fix=_PLUGIN_LOG)
    else:
        yield ok("plugin", "it runs" if plugin.state == "serving" else "it runs, and is ready")
    yield _registration(settings, plugin)


def _registration(settings: NodeSettings, plugin: Plugin) -> Check:
    name = "registration-socket"
    registry = Path(settings.kubelet_dir) / "plugins_registry"
    sockets = [*registry.glob(f"{DRIVER_NAME}*-reg.sock"), *registry.glob("dra-*-reg.sock")]
    if any(map(listens, sockets)):
        return ok(name, "the kubelet finds the plugin")
    if not plugin.runs:
        return skip(name, "the node plugin does not run")
    return fail(
        name,
        f"there is no socket of a living plugin in {registry}: the kubelet cannot find it",
        fix="it is made again within a second where the directory can be written; in the plugin's pod the"
        " directory must be a mount of the host's",
    )


def held_files(files: Files) -> Iterator[Check]:
    """The files that say who holds what."""
    name = "held-files"
    for error in files.problems:
        yield fail(name, error.cause, fix=error.next_step)
    for damage in files.held.damaged.values():
        yield fail(
            name,
            f"the file of claim uid {damage.uid} cannot be used: {damage.cause}",
            fix="finish the upgrade of Tangram"
            if damage.newer
            else "the plugin sets it aside and rebuilds it; if it comes again, look at the disk",
        )
    for claim in files.held.claims.values():
        if claim.phase != "prepared":
            yield warn(
                name,
                f"{claim.label} is half done ({claim.phase})",
                fix="the plugin finishes or undoes it within a minute; if not, its log says what hinders it",
            )
    if files.set_aside:
        yield warn(
            name,
            f"{len(files.set_aside)} were set aside as not usable, the last as {files.set_aside[-1]}",
            fix="look at the disk (a full or failing one damages files); remove them once nobody needs them",
        )
    if not (files.problems or files.held.damaged or files.set_aside):
        count = len(files.held.claims)
        yield ok(name, f"{count} claim{'' if count == 1 else 's'} held")


def drains(files: Files) -> Iterator[Check]:
    """GPUs that somebody has drained, and may have forgotten."""
    for uuid, drain in files.drains.items():
        yield warn(
            "drains", f"{uuid} is {drain.text}", fix=f"tangram node drain-gpu --undo {uuid} gives it back"
        )
    if not files.drains:
        yield ok("drains", "no GPU is drained")


def cdi_files(settings: NodeSettings, files: Files) -> Iterator[Check]:
    """What the container runtime reads, beside what is held."""
    name = "cdi-files"
    root = Path(settings.cdi_root)
    if not root.is_dir():
        yield skip(name, f"there is no directory {root}")
        return
    try:
        written = CdiFiles(root).uids()
    except TangramError as error:
        yield fail(name, error.cause, fix=error.next_step)
        return
    prepared = {uid for uid, claim in files.held.claims.items() if claim.phase == "prepared"}
    if missing := sorted(prepared - written):
        yield fail(
            name,
            f"none for {_some(missing)}, which are held: their containers cannot start again",
            fix="the plugin writes them again within a minute; if not, look at its log and at the directory",
        )
    if strays := sorted(written - files.held.claims.keys() - files.held.damaged.keys()):
        yield warn(
            name,
            f"some of claims that are not held: {_some(strays)}",
            fix="the plugin rebuilds or removes them within a minute",
        )
    if not missing and not strays:
        yield ok(name, f"{len(written)}, all of held claims")


def _some(uids: list[str]) -> str:
    more = f" and {len(uids) - 3} more" if len(uids) > 3 else ""
    return f"claim{'s' if len(uids) > 1 else ''} {', '.join(uids[:3])}{more}"


def disk(paths: Iterable[Path]) -> Iterator[Check]:
    """Room on the file systems that state is written to."""
    seen: dict[int, Path] = {}
    for path in paths:
        if path.is_dir():
            seen.setdefault(path.stat().st_dev, path)
    for path in seen.values():
        yield _room(path)


def _room(path: Path) -> Check:
    name = "disk"
    room = os.statvfs(path)
    free_bytes = room.f_bavail * room.f_frsize
    # A file system without a table of inodes counts none.
    few = room.f_files > 0 and room.f_favail < _TOO_FEW_FILES
    if free_bytes < TOO_LITTLE_BYTES or few:
        what = "no room for files" if few else f"{free_bytes // 2**20} MiB left"
        return fail(name, f"{path}: {what}", fix="free space there: without it no claim can be prepared")
    if free_bytes < LITTLE_BYTES:
        return warn(name, f"{path}: {free_bytes // 2**20} MiB left", fix="free space there")
    return ok(name, f"{path}: {free_bytes / 2**30:.1f} GiB left")
