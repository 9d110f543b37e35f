"""A stand-in for the kubelet's side of DRA: finds plugins, registers them, prepares and unprepares claims.

It follows the kubelet 1.36 in what a plugin can see of it: which sockets it looks at, what it asks and in
which order, how it chooses among versions and instances, and which answers it accepts.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Protocol, Self

import grpc
import msgspec

from tangram.base.errors import NotFoundError, TangramError
from tangram.kube.resources import RESOURCE_SLICES, Resource
from tangram.kubeletplugin.driver import ClaimReference, PreparedDevice
from tangram.kubeletplugin.proto import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
    health_v1_pb2,
    health_v1_pb2_grpc,
    health_v1alpha1_pb2,
    health_v1alpha1_pb2_grpc,
    registration_v1_pb2,
    registration_v1_pb2_grpc,
)

CALL_TIMEOUT_S = 45.0
_SCAN_INTERVAL_S = 0.02
_REGISTRATION_TIMEOUT_S = 5.0
# What grpc-go sends; grpcio's client would send the percent-encoded path.
_CHANNEL_OPTIONS = [("grpc.default_authority", "localhost")]
_DRA: Mapping[str, tuple[ModuleType, Any]] = {
    "v1.DRAPlugin": (dra_v1_pb2, dra_v1_pb2_grpc.DRAPluginStub),
    "v1beta1.DRAPlugin": (dra_v1beta1_pb2, dra_v1beta1_pb2_grpc.DRAPluginStub),
}
_HEALTH: Mapping[str, tuple[ModuleType, Any]] = {
    "v1.DRAResourceHealth": (health_v1_pb2, health_v1_pb2_grpc.DRAResourceHealthStub),
    "v1alpha1.DRAResourceHealth": (health_v1alpha1_pb2, health_v1alpha1_pb2_grpc.DRAResourceHealthStub),
}


class SliceClient(Protocol):
    """What wiping slices takes; `tangram.kube.client.Client` fits."""

    async def list_page(self, resource: Resource, *, field_selector: str = "") -> bytes: ...

    async def delete(self, resource: Resource, *, name: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedClaim:
    """The plugin's answer for one claim; `error` is empty on success."""

    devices: tuple[PreparedDevice, ...] = ()
    error: str = ""


@dataclass(slots=True, kw_only=True, eq=False)
class RegisteredPlugin:
    """One instance of a plugin, as the kubelet knows it."""

    driver_name: str
    endpoint: str
    service: str
    supported_versions: tuple[str, ...]
    channel: grpc.aio.Channel = field(repr=False)

    @property
    def connected(self) -> bool:
        return self.channel.get_state(try_to_connect=True) == grpc.ChannelConnectivity.READY


class FakeKubelet:
    """Use as `async with`: looks at `<directory>/plugins_registry` all the time in between.

    `versions` are the DRA services it knows, `client` and `node_name` are for `restart(wipe_slices=True)`.
    While `refuse` holds a text, registrations are refused with it, and, as with the real kubelet, not tried
    again until the socket's file is a new one.
    """

    def __init__(
        self,
        directory: Path,
        *,
        versions: Sequence[str] = ("v1.DRAPlugin", "v1beta1.DRAPlugin"),
        client: SliceClient | None = None,
        node_name: str = "",
    ) -> None:
        self._registry = directory / "plugins_registry"
        self._versions = versions
        self._client = client
        self._node_name = node_name
        self.refuse = ""
        self.refusals = 0
        self._seen: dict[Path, tuple[int, int]] = {}
        self._plugins: dict[Path, RegisteredPlugin] = {}
        self._changed = asyncio.Condition()
        self._scanner: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    def start(self) -> None:
        """Begins to look for plugins."""
        self._registry.mkdir(parents=True, exist_ok=True)
        self._scanner = asyncio.create_task(self._scan_forever(), name="fake-kubelet")

    async def stop(self) -> None:
        """Ends as a killed kubelet does: connections drop, nobody is told."""
        if self._scanner is not None:
            self._scanner.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._scanner
            self._scanner = None
        for path in tuple(self._plugins):
            await self._deregister(path)
        self._seen.clear()

    async def restart(self, *, wipe_slices: bool = False) -> None:
        """Ends, optionally wipes this node's slices as the kubelet does at start, and starts again."""
        await self.stop()
        if wipe_slices:
            await self.wipe_slices()
        self.start()

    async def wipe_slices(self, *, driver_name: str = "") -> None:
        """Deletes the ResourceSlices of this node, as 30 s after the last plugin of a driver went away."""
        if self._client is None or not self._node_name:
            raise TangramError("the fake kubelet was given no client and node name to wipe slices with")
        selector = f"spec.nodeName={self._node_name}"
        if driver_name:
            selector += f",spec.driver={driver_name}"
        page = msgspec.json.decode(await self._client.list_page(RESOURCE_SLICES, field_selector=selector))
        for item in page.get("items") or ():
            with contextlib.suppress(NotFoundError):
                await self._client.delete(RESOURCE_SLICES, name=item["metadata"]["name"])

    async def plugin(self, driver_name: str, *, timeout_s: float = 10.0) -> RegisteredPlugin:
        """The newest connected instance. Waits for one; TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while True:
                for candidate in reversed(self.plugins(driver_name)):
                    if candidate.connected:
                        return candidate
                await asyncio.sleep(_SCAN_INTERVAL_S)

    async def _choose(self, driver_name: str) -> RegisteredPlugin:
        """The newest connected instance, else the newest; waits only while there is none."""
        async with asyncio.timeout(10), self._changed:
            await self._changed.wait_for(lambda: self.plugins(driver_name))
        candidates = self.plugins(driver_name)
        return next((plugin for plugin in reversed(candidates) if plugin.connected), candidates[-1])

    def plugins(self, driver_name: str) -> list[RegisteredPlugin]:
        """All registered instances, oldest first."""
        return [plugin for plugin in self._plugins.values() if plugin.driver_name == driver_name]

    async def until(self, driver_name: str, *, instances: int, timeout_s: float = 10.0) -> None:
        """Waits until exactly so many instances are registered; TimeoutError."""
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(lambda: len(self.plugins(driver_name)) == instances)

    async def until_refused(self, count: int = 1, *, timeout_s: float = 10.0) -> None:
        """Waits until `count` registrations have been refused; TimeoutError."""
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(lambda: self.refusals >= count)

    async def prepare(
        self, driver_name: str, claims: Sequence[ClaimReference], *, timeout_s: float = CALL_TIMEOUT_S
    ) -> dict[str, PreparedClaim]:
        """Answers by claim uid.

        Raises TangramError for an answer that the kubelet refuses, and when the plugin is deregistered during
        the call; AioRpcError for a call that fails.
        """
        plugin = await self._choose(driver_name)
        messages, stub = _DRA[plugin.service]
        response = await _answer(
            stub(plugin.channel).NodePrepareResources(
                messages.NodePrepareResourcesRequest(claims=_claims(messages, claims)), timeout=timeout_s
            )
        )
        _check_uids(response.claims, claims)
        return {uid: _prepared(answer) for uid, answer in response.claims.items()}

    async def unprepare(
        self, driver_name: str, claims: Sequence[ClaimReference], *, timeout_s: float = CALL_TIMEOUT_S
    ) -> dict[str, str]:
        """Errors by claim uid, empty on success. Raises as `prepare`."""
        plugin = await self._choose(driver_name)
        messages, stub = _DRA[plugin.service]
        response = await _answer(
            stub(plugin.channel).NodeUnprepareResources(
                messages.NodeUnprepareResourcesRequest(claims=_claims(messages, claims)), timeout=timeout_s
            )
        )
        _check_uids(response.claims, claims)
        return {uid: answer.error for uid, answer in response.claims.items()}

    async def health(
        self, driver_name: str, *, version: str = "v1alpha1.DRAResourceHealth"
    ) -> AsyncIterator[dict[tuple[str, str], str]]:
        """The health stream: complete lists, as (pool, device) → UNKNOWN | HEALTHY | UNHEALTHY."""
        plugin = await self.plugin(driver_name)
        messages, stub = _HEALTH[version]
        names = messages.HealthStatus
        async for message in stub(plugin.channel).NodeWatchResources(messages.NodeWatchResourcesRequest()):
            yield {
                (entry.device.pool_name, entry.device.device_name): names.Name(entry.health)
                for entry in message.devices
            }

    async def _scan_forever(self) -> None:
        while True:
            await self._scan()
            await asyncio.sleep(_SCAN_INTERVAL_S)

    async def _scan(self) -> None:
        found: dict[Path, tuple[int, int]] = {}
        for path in sorted(self._registry.iterdir()) if self._registry.is_dir() else ():
            with contextlib.suppress(FileNotFoundError):
                status = path.lstat()
                if path.is_socket() and not path.name.startswith("."):
                    # A recreated socket may get the same inode again, but not the same time.
                    found[path] = (status.st_ino, status.st_ctime_ns)
        for path in [path for path, identity in self._seen.items() if found.get(path) != identity]:
            del self._seen[path]
            await self._deregister(path)
        for path in [path for path in found if path not in self._seen]:
            if await self._register(path):
                self._seen[path] = found[path]

    async def _register(self, path: Path) -> bool:
        """Whether the kubelet is done with this file (accepted or refused); if not, it tries again."""
        async with grpc.aio.insecure_channel(f"unix:{path}", options=_CHANNEL_OPTIONS) as channel:
            registration: Any = registration_v1_pb2_grpc.RegistrationStub(channel)
            try:
                info = await registration.GetInfo(
                    registration_v1_pb2.InfoRequest(), timeout=_REGISTRATION_TIMEOUT_S
                )
                refusal = self._refusal(info)
                if not refusal:
                    self._add(path, info)
                await registration.NotifyRegistrationStatus(
                    registration_v1_pb2.RegistrationStatus(plugin_registered=not refusal, error=refusal),
                    timeout=_REGISTRATION_TIMEOUT_S,
                )
            except grpc.aio.AioRpcError:
                return False
        async with self._changed:
            self.refusals += bool(refusal)
            self._changed.notify_all()
        return True

    def _refusal(self, info: registration_v1_pb2.PluginInfo) -> str:
        if self.refuse:
            return self.refuse
        if info.type != "DRAPlugin":
            return f"no handler registered for plugin type: {info.type}"
        if not any(version in self._versions for version in info.supported_versions):
            return f"none of {list(info.supported_versions)} is supported ({list(self._versions)})"
        if any(plugin.endpoint == info.endpoint for plugin in self._plugins.values()):
            return f"endpoint {info.endpoint} already registered"
        return ""

    def _add(self, path: Path, info: registration_v1_pb2.PluginInfo) -> None:
        # In the plugin's order, not the kubelet's.
        service = next(version for version in info.supported_versions if version in self._versions)
        channel = grpc.aio.insecure_channel(f"unix:{info.endpoint}", options=_CHANNEL_OPTIONS)
        channel.get_state(try_to_connect=True)
        self._plugins[path] = RegisteredPlugin(
            driver_name=info.name,
            endpoint=info.endpoint,
            service=service,
            supported_versions=tuple(info.supported_versions),
            channel=channel,
        )

    async def _deregister(self, path: Path) -> None:
        plugin = self._plugins.pop(path, None)
        if plugin is not None:
            await plugin.channel.close()
        async with self._changed:
            self._changed.notify_all()


def _claims(messages: Any, claims: Sequence[ClaimReference]) -> list[Any]:
    return [messages.Claim(namespace=claim.namespace, uid=claim.uid, name=claim.name) for claim in claims]


async def _answer(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # grpcio's word for a channel that was closed during the call.
        raise TangramError("the kubelet hung up during the call: the plugin was deregistered") from None


def _check_uids(answers: Mapping[str, object], claims: Sequence[ClaimReference]) -> None:
    asked = {claim.uid for claim in claims}
    if unknown := sorted(answers.keys() - asked):
        raise TangramError(f"the plugin returned results for unknown claim UIDs {unknown}")
    if missing := sorted(asked - answers.keys()):
        raise TangramError(f"the plugin skipped {len(missing)} ResourceClaims: {missing}")


def _prepared(answer: Any) -> PreparedClaim:
    return PreparedClaim(
        error=answer.error,
        devices=tuple(
            PreparedDevice(
                request_names=tuple(device.request_names),
                pool_name=device.pool_name,
                device_name=device.device_name,
                cdi_device_ids=tuple(device.cdi_device_ids),
                share_id=_share_id(device),
            )
            for device in answer.devices
        ),
    )


def _share_id(device: Any) -> str | None:
    """None in v1beta1, which has no such field, and in v1 where it is not set."""
    if "share_id" in device.DESCRIPTOR.fields_by_name and device.HasField("share_id"):
        return str(device.share_id)
    return None
