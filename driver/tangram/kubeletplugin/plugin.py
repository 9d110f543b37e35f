"""A DRA driver's side of the kubelet: sockets, services, registration, and their upkeep."""

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

import grpc

from tangram.base.clock import Clock
from tangram.base.errors import ConfigurationError, TangramError
from tangram.base.logs import get_logger
from tangram.kubeletplugin.claims import ClaimService
from tangram.kubeletplugin.driver import ClaimReader, Driver
from tangram.kubeletplugin.health import DeviceHealth, HealthBoard, add_health_services
from tangram.kubeletplugin.metrics import SOCKETS_RESTORED
from tangram.kubeletplugin.proto.registration_v1_pb2_grpc import add_RegistrationServicer_to_server
from tangram.kubeletplugin.registration import Registration
from tangram.kubeletplugin.server import SocketServer
from tangram.kubeletplugin.service import add_dra_services
from tangram.kubeletplugin.sockets import (
    dra_socket_path,
    registration_socket_path,
    remove_dead_sockets,
)

_log = get_logger("kubeletplugin")

DEFAULT_KUBELET_DIRECTORY = Path("/var/lib/kubelet")
# How often the socket files are looked at. The kubelet wipes a lost plugin's slices after 30 s.
UPKEEP_INTERVAL_S = 1.0
# What calls that only answer get when the server stops: the registrar's, and those of cancelled work.
_ANSWER_GRACE_S = 0.2
_DRIVER_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")
_POD_UID = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)?")


class KubeletPlugin:
    """Serves a `Driver` to the kubelet of this node.

    `kubelet_directory` must have the same path here and for the kubelet. With `pod_uid` (the uid of the pod
    this process runs in), an old and a new process can serve side by side during a rolling update; both must
    agree on what is prepared through their driver's state on disk. Without it the plain names are used and
    the later process takes over from the earlier one.

    Raises ConfigurationError for a name that is no DNS subdomain of at most 63 characters, and when no
    socket name fits.
    """

    def __init__(
        self,
        *,
        driver_name: str,
        driver: Driver,
        client: ClaimReader,
        clock: Clock,
        kubelet_directory: Path = DEFAULT_KUBELET_DIRECTORY,
        pod_uid: str = "",
    ) -> None:
        if len(driver_name) > 63 or not _DRIVER_NAME.fullmatch(driver_name):
            raise ConfigurationError(
                f"driver name {driver_name[:80]!r} is not a DNS subdomain of at most 63 characters"
            )
        if not _POD_UID.fullmatch(pod_uid):
            raise ConfigurationError(
                f"pod uid {pod_uid[:80]!r} is not a uid", next_step="take it from metadata.uid (fieldRef)"
            )
        self._driver_name = driver_name
        self._clock = clock
        self._plugin_directory = kubelet_directory / "plugins" / driver_name
        self._registry_directory = kubelet_directory / "plugins_registry"
        self._claims = ClaimService(driver_name=driver_name, driver=driver, claims=client, clock=clock)
        self._health = HealthBoard()
        dra_path = dra_socket_path(plugin_directory=self._plugin_directory, pod_uid=pod_uid)
        self._registration = Registration(driver_name=driver_name, endpoint=dra_path, clock=clock)
        self._dra = SocketServer(path=dra_path, services=self._add_services)
        self._registrar = SocketServer(
            path=registration_socket_path(
                registry_directory=self._registry_directory, driver_name=driver_name, pod_uid=pod_uid
            ),
            services=lambda server: add_RegistrationServicer_to_server(self._registration, server),
        )
        self._upkeep: asyncio.Task[None] | None = None

    def _add_services(self, server: grpc.aio.Server) -> None:
        add_dra_services(server, self._claims)
        add_health_services(server, self._health)

    @property
    def registered(self) -> bool:
        """Whether the kubelet has accepted this plugin and can still find it: readiness."""
        return self._registration.registered and self._registrar.intact

    def set_health(self, devices: Sequence[DeviceHealth]) -> None:
        """Tells the kubelet the health of all devices (the complete list, every time)."""
        self._health.set(devices)

    async def start(self) -> None:
        """Serves, then offers itself to the kubelet; returns before the kubelet has answered.

        Raises ConfigurationError when a socket cannot be made.
        """
        await self._dra.open()
        self._remove_dead_sockets()
        await self._registrar.open()
        _log.info(
            "plugin_started",
            driver=self._driver_name,
            dra_socket=str(self._dra.path),
            registration_socket=str(self._registrar.path),
        )
        self._upkeep = asyncio.create_task(self._keep_up(), name="kubeletplugin-upkeep")

    async def stop(self, *, grace_s: float) -> None:
        """Refuses new calls (UNAVAILABLE), gives running ones `grace_s`, withdraws from the kubelet.

        Work still running after `grace_s` is cancelled. Removes only this process's sockets.
        """
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.wait({self._upkeep})
            self._upkeep = None
        self._health.close()
        # The kubelet hangs up, running calls and all, as soon as the registration socket is gone: not before.
        await asyncio.gather(
            self._dra.stop(grace_s=grace_s + _ANSWER_GRACE_S), self._claims.drain(grace_s=grace_s)
        )
        await self._registrar.stop(grace_s=_ANSWER_GRACE_S)
        self._registration.forget()
        _log.info("plugin_stopped", driver=self._driver_name)

    def _remove_dead_sockets(self) -> None:
        removed = [
            *remove_dead_sockets(self._plugin_directory, "dra*.sock"),
            *remove_dead_sockets(self._registry_directory, f"{self._driver_name}-*reg.sock"),
        ]
        if removed:
            _log.info("dead_sockets_removed", paths=[str(path) for path in removed])

    async def _keep_up(self) -> None:
        while True:
            await self._clock.sleep(UPKEEP_INTERVAL_S)
            try:
                await self._restore_sockets()
            except TangramError as error:
                _log.error("sockets_not_restored", error=str(error))

    async def _restore_sockets(self) -> None:
        if self._dra.lost:
            await self._restore("dra", self._dra)
        if self._registrar.lost:
            self._registration.forget()
            await self._restore("registration", self._registrar)
        elif self._registration.retry_due:
            self._registration.forget()
            await self._registrar.open()

    async def _restore(self, name: str, server: SocketServer) -> None:
        _log.warning("socket_lost", socket=name, path=str(server.path))
        await server.open()
        SOCKETS_RESTORED.labels(name).inc()
