"""Registration with the kubelet: it finds our socket, asks who we are, and says whether it took us."""

from pathlib import Path

import grpc

from tangram.base.backoff import Backoff
from tangram.base.clock import Clock
from tangram.base.logs import get_logger
from tangram.kubeletplugin import health, service
from tangram.kubeletplugin.metrics import REGISTERED, REGISTRATION_FAILURES
from tangram.kubeletplugin.proto import registration_v1_pb2 as messages
from tangram.kubeletplugin.proto import registration_v1_pb2_grpc as stubs

_log = get_logger("kubeletplugin")

PLUGIN_TYPE = "DRAPlugin"
SUPPORTED_VERSIONS = (*service.SERVICES, *health.SERVICES)


class Registration(stubs.RegistrationServicer):
    """What the kubelet thinks of this plugin.

    A kubelet that fails after its checks does not try the same socket file again. So a refusal asks (after
    a back-off) for a new file: `retry_due` tells when.
    """

    def __init__(self, *, driver_name: str, endpoint: Path, clock: Clock) -> None:
        self._info = messages.PluginInfo(
            type=PLUGIN_TYPE,
            name=driver_name,
            endpoint=str(endpoint),
            supported_versions=SUPPORTED_VERSIONS,
        )
        self._clock = clock
        self._backoff = Backoff(initial_s=1.0, maximum_s=60.0)
        self._retry_at_s: float | None = None
        self._registered = False

    @property
    def registered(self) -> bool:
        """Whether the last word of a kubelet was that it accepted us."""
        return self._registered

    @property
    def retry_due(self) -> bool:
        """Whether the kubelet refused us, long enough ago to offer ourselves again."""
        return self._retry_at_s is not None and self._clock.monotonic_s() >= self._retry_at_s

    def forget(self) -> None:
        """Whatever the kubelet said about an earlier socket file is over."""
        self._retry_at_s = None
        self._set(registered=False)

    def _set(self, *, registered: bool) -> None:
        self._registered = registered
        REGISTERED.set(registered)

    async def GetInfo(  # noqa: N802
        self,
        request: messages.InfoRequest,  # noqa: ARG002
        context: grpc.ServicerContext,  # noqa: ARG002
    ) -> messages.PluginInfo:
        return self._info

    async def NotifyRegistrationStatus(  # noqa: N802
        self,
        request: messages.RegistrationStatus,
        context: grpc.ServicerContext,  # noqa: ARG002
    ) -> messages.RegistrationStatusResponse:
        self._set(registered=request.plugin_registered)
        if request.plugin_registered:
            self._backoff.reset()
            self._retry_at_s = None
            _log.info("registered_with_kubelet", driver=self._info.name, endpoint=self._info.endpoint)
        else:
            REGISTRATION_FAILURES.inc()
            delay_s = self._backoff.next_s()
            self._retry_at_s = self._clock.monotonic_s() + delay_s
            _log.error(
                "registration_refused_by_kubelet",
                driver=self._info.name,
                error=request.error[:1024],
                retry_in_s=round(delay_s, 3),
                next_step="see the kubelet's log",
            )
        return messages.RegistrationStatusResponse()
