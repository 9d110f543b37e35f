"""What can be seen of a node from beside its plugin, alive or dead: hardware, files, sockets, API server.

Everything only looks. Each source has a time limit of its own, and one that fails costs only what it tells.
"""

import asyncio
import os
import socket
import stat
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import aiohttp
import msgspec

from tangram import DRIVER_NAME, __version__
from tangram.base.clock import Clock, SystemClock, within
from tangram.base.errors import NotFoundError, StateError, TangramError, UnreachableError
from tangram.base.serving import parse_address
from tangram.hardware.cdi import CdiEdits
from tangram.hardware.mps.directory import MpsDirectory, mps_root
from tangram.hardware.mps.processes import read_boot_id
from tangram.hardware.workers import Workers
from tangram.kube.client import Client
from tangram.kube.decoding import decode
from tangram.kube.objects import ResourceClaim, ResourceSlice
from tangram.kube.resources import PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from tangram.model.devices import DRAINED_TAINT
from tangram.model.gpu import GpuUuid
from tangram.node.discovery import Discovery
from tangram.node.drains import DIRECTORY, Drain, DrainStore
from tangram.node.gpunotes import GpuNotes
from tangram.node.held import Contents, HeldClaim, MigStep
from tangram.node.heldstore import HeldStore
from tangram.node.inventory import Inventory
from tangram.node.mpswatch import failing_daemons
from tangram.node.settings import NodeSettings

API_DEADLINE_S = 5.0
"""For all that is asked of the API server together: what it tells is welcome, and never needed."""
_PLUGIN_DEADLINE_S = 5.0
_PAGE = 500

T = TypeVar("T")

Published = Literal["healthy", "unhealthy", "drained"]
"""How the devices of a GPU stand in the node's slices. A server before 1.36 drops the taint that tells
drained from unhealthy."""
PluginState = Literal["not running", "not answering", "waiting", "ready", "serving"]
"""`serving`: it has no HTTP address, so that only its socket tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """The node plugin's process. `waiting_for`: what keeps it from its work."""

    state: PluginState
    waiting_for: tuple[str, ...] = ()

    @property
    def runs(self) -> bool:
        """Whether something listens on its socket."""
        return self.state != "not running"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """The hardware as the plugin would see it now; `inventory` is None where it cannot be looked at."""

    inventory: Inventory | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """What is on disk. `set_aside` are held files that could not be used, under their new names; `owed` MIG
    instances of claims that have ended, `mps_failing` GPUs whose MPS daemon serves nobody, in words.
    """

    held: Contents = field(default_factory=Contents)
    set_aside: tuple[str, ...] = ()
    drains: Mapping[GpuUuid, Drain] = field(default_factory=dict)
    owed: tuple[MigStep, ...] = ()
    mps_failing: Mapping[GpuUuid, str] = field(default_factory=dict)
    problems: tuple[TangramError, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """What the API server tells; None: it was not asked, or did not answer (`problem`).

    `pods` are names of those that a claim (by uid) is reserved for.
    """

    published: Mapping[GpuUuid, Published] | None = None
    pods: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    problem: TangramError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """All of it."""

    files: Files = field(default_factory=Files)
    gpus: Gpus = field(default_factory=Gpus)
    plugin: Plugin = field(default_factory=lambda: Plugin(state="not running"))
    api: Api = field(default_factory=Api)


def plugin_directory(settings: NodeSettings) -> Path:
    """Where the plugin keeps its state and its socket."""
    return Path(settings.kubelet_dir) / "plugins" / DRIVER_NAME


def drain_store(settings: NodeSettings) -> DrainStore:
    """The node's drains."""
    return DrainStore(plugin_directory(settings) / DIRECTORY)


def look_at_files(settings: NodeSettings) -> Files:
    """Held files, notes of GPUs, drains, and what is said of MPS daemons. Blocking. StateError where this
    process may not even look for them."""
    directory = plugin_directory(settings)
    problems: list[TangramError] = []

    def read(what: Callable[[], T], default: T) -> T:
        try:
            return what()
        except TangramError as error:
            problems.append(error)
            return default

    claims = directory / "claims"
    try:
        mode = directory.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = 0
    except OSError as error:
        raise StateError(
            f"{directory} cannot be looked at: {error.strerror or error}",
            next_step="run it as root, or in the pod of the node plugin",
        ) from error
    if not stat.S_ISDIR(mode):
        problem = StateError(
            f"no node plugin has run here: there is no {directory}",
            next_step="look at the right node, and with its kubelet directory (--kubelet-dir)",
        )
        return Files(problems=(problem,))
    boot_id = read_boot_id()
    # The clock is for those who wait.
    mps = MpsDirectory(mps_root(settings.kubelet_dir), clock=SystemClock(), boot_id=boot_id)
    return Files(
        held=read(HeldStore(claims).load, Contents()),
        set_aside=tuple(sorted(map(str, claims.glob("*.set-aside-*")))),
        drains=read(drain_store(settings).load, {}),
        owed=read(GpuNotes(directory / "gpus", boot_id=boot_id).instances, ()),
        mps_failing=read(lambda: failing_daemons(mps.statuses()), {}),
        problems=tuple(problems),
    )


async def look_at_plugin(settings: NodeSettings, *, clock: Clock) -> Plugin:
    """Whether the plugin runs, and whether it does its work."""
    sockets = sorted(plugin_directory(settings).glob("dra*.sock"))
    if not any(map(listens, sockets)):
        return Plugin(state="not running")
    if not settings.metrics_address or not parse_address(settings.metrics_address)[1]:
        return Plugin(state="serving")
    try:
        waiting = await within(_readiness(settings.metrics_address), seconds=_PLUGIN_DEADLINE_S, clock=clock)
    except (aiohttp.ClientError, OSError, TimeoutError, UnicodeDecodeError):
        return Plugin(state="not answering")
    return Plugin(state="waiting" if waiting else "ready", waiting_for=waiting)


def listens(path: Path) -> bool:
    """Whether a process serves this Unix socket; says nothing to it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(os.fspath(path))
        except BlockingIOError:
            return True  # its queue is full
        except OSError:
            return False
    return True


async def _readiness(address: str) -> tuple[str, ...]:
    host, port = parse_address(address)
    host = "127.0.0.1" if host in ("", "0.0.0.0") else host  # noqa: S104 - where it listens for all
    host = f"[{host}]" if ":" in host else host
    async with aiohttp.ClientSession() as session, session.get(f"http://{host}:{port}/readyz") as answer:
        text = await answer.text()
        if answer.status == 200:
            return ()
        return tuple(line.removeprefix("waiting for ") for line in text.splitlines() if line)


async def look_at_gpus(settings: NodeSettings, files: Files, *, workers: Workers, clock: Clock) -> Gpus:
    """One look at the hardware, as the plugin looks: each call with its time limit."""
    claims = tuple(files.held.claims.values())
    discovery = Discovery(
        workers=workers,
        held=lambda: claims,
        driver_edits=CdiEdits,
        changed=lambda _: None,
        clock=clock,
        rescan_interval_s=settings.rescan_interval_s,
        policy=settings.policy,
        drained=lambda: {uuid: drain.text for uuid, drain in files.drains.items()},
        owed=lambda: files.owed,
        mps_failing=lambda: files.mps_failing,
    )
    await discovery.look()
    return Gpus(inventory=discovery.inventory, problem=discovery.problem)


async def look_at_api(settings: NodeSettings, claims: Collection[HeldClaim], *, clock: Clock) -> Api:
    """The node's slices, and the pods of claims held here."""

    async def ask(client: Client) -> Api:
        published = await published_devices(client, settings.node_name)
        found = await asyncio.gather(*(_pods(client, claim) for claim in claims))
        return Api(
            published=published,
            pods={claim.uid: pods for claim, pods in zip(claims, found, strict=True) if pods is not None},
        )

    try:
        return await with_client(settings, ask, clock=clock)
    except TangramError as error:
        return Api(problem=error)


async def with_client(
    settings: NodeSettings, ask: Callable[[Client], Coroutine[Any, Any, T]], *, clock: Clock
) -> T:
    """What `ask` gets from the API server within the time limit. Raises ConfigurationError, KubeError."""
    # Loading what it takes is slow on a busy node, and no fault of the server: its time begins then.
    client = await Client.connect(
        kubeconfig=settings.kubeconfig, user_agent=f"tangram-node-command/{__version__}"
    )
    try:
        return await within(ask(client), seconds=API_DEADLINE_S, clock=clock)
    except TimeoutError:
        raise UnreachableError(
            f"the API server did not answer within {API_DEADLINE_S:g} s",
            next_step="compare with kubectl get --raw /readyz",
        ) from None
    finally:
        await client.close()


class _ListMetadata(msgspec.Struct, frozen=True):
    continue_token: str = msgspec.field(default="", name="continue")


class _Slices(msgspec.Struct, frozen=True):
    metadata: _ListMetadata = _ListMetadata()
    items: list[ResourceSlice] | None = None


async def published_devices(client: Client, node_name: str) -> dict[GpuUuid, Published]:
    """How each GPU that the node publishes stands in its slices. Raises KubeError."""
    selector = f"spec.driver={DRIVER_NAME},spec.nodeName={node_name}"
    items: list[ResourceSlice] = []
    token = ""
    while True:
        page = decode(
            await client.list_page(
                RESOURCE_SLICES, limit=_PAGE, continue_token=token, field_selector=selector
            ),
            _Slices,
        )
        items += page.items or ()
        token = page.metadata.continue_token
        if not token:
            return _published(items)


def _published(items: Collection[ResourceSlice]) -> dict[GpuUuid, Published]:
    newest = max((item.spec.pool.generation for item in items), default=0)
    seen: dict[GpuUuid, set[Published]] = {}
    for item in items:
        for device in item.spec.devices or () if item.spec.pool.generation == newest else ():
            attributes = device.attributes or {}
            # A MIG device tells its GPU in an attribute of its own.
            uuid = attributes.get("parentUUID") or attributes.get("uuid")
            if uuid is None or not uuid.string:
                continue
            healthy = attributes.get("healthy")
            drained = any(taint.key == DRAINED_TAINT for taint in device.taints or ())
            ill = healthy is not None and healthy.bool_ is False
            state: Published = "drained" if drained else "unhealthy" if ill else "healthy"
            seen.setdefault(GpuUuid(uuid.string), set()).add(state)
    # While slices are being written: what may still be given away counts.
    order: tuple[Published, ...] = ("healthy", "unhealthy", "drained")
    return {uuid: next(state for state in order if state in states) for uuid, states in seen.items()}


async def _pods(client: Client, claim: HeldClaim) -> tuple[str, ...] | None:
    """The pods of a claim; None where that cannot be told."""
    try:
        data = await client.get(RESOURCE_CLAIMS, name=claim.name, namespace=claim.namespace)
        found = decode(data, ResourceClaim)
    except NotFoundError:
        return ()
    except TangramError:
        return None
    if found.metadata.uid != claim.uid:
        return ()
    return tuple(
        consumer.name
        for consumer in found.consumers
        if consumer.resource == PODS.plural and not consumer.api_group
    )
