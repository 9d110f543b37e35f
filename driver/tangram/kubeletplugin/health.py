"""The health service: streams what the driver says about its devices to the kubelet.

Every message is the complete list, and a device that is missing in one becomes unknown. So nothing is sent
before the driver has said something: a driver that does not report health leaves the kubelet's view alone.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

import grpc

from tangram.kubeletplugin.proto import (
    health_v1_pb2,
    health_v1_pb2_grpc,
    health_v1alpha1_pb2,
    health_v1alpha1_pb2_grpc,
)

# Kubelets up to 1.36 ask v1alpha1 whether or not it is announced; names they do not know they skip.
SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")

_MAXIMUM_MESSAGE_BYTES = 1024
_VALUES = {"unknown": 0, "healthy": 1, "unhealthy": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHealth:
    """The health of one device at `updated_unix_s`; unknown again if not confirmed for `timeout_s`."""

    pool_name: str
    device_name: str
    health: Literal["unknown", "healthy", "unhealthy"]
    updated_unix_s: int
    timeout_s: int = 0
    message: str = ""


class HealthBoard:
    """The latest health of all devices, and the streams that follow it."""

    def __init__(self) -> None:
        self._devices: tuple[DeviceHealth, ...] | None = None
        self._closed = False
        self._changed = asyncio.Event()

    def set(self, devices: Sequence[DeviceHealth]) -> None:
        """Replaces the complete list and sends it to every stream."""
        self._devices = tuple(devices)
        self._wake()

    def close(self) -> None:
        """Ends all streams."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self) -> AsyncIterator[tuple[DeviceHealth, ...]]:
        """The list as it is (if there is one), then every newer one; a slow reader skips the ones between."""
        sent: tuple[DeviceHealth, ...] | None = None
        while not self._closed:
            changed = self._changed
            if self._devices is not None and self._devices is not sent:
                sent = self._devices
                yield sent
            else:
                await changed.wait()


def add_health_services(server: grpc.aio.Server, board: HealthBoard) -> None:
    """Serves v1 and v1alpha1 from the one board."""
    health_v1_pb2_grpc.add_DRAResourceHealthServicer_to_server(_V1(health_v1_pb2, board), server)
    health_v1alpha1_pb2_grpc.add_DRAResourceHealthServicer_to_server(
        _V1Alpha1(health_v1alpha1_pb2, board), server
    )


class _Service:
    def __init__(self, messages: ModuleType, board: HealthBoard) -> None:
        self._messages: Any = messages
        self._board = board

    async def NodeWatchResources(self, request: object, context: object) -> AsyncIterator[Any]:  # noqa: N802, ARG002
        async for devices in self._board.follow():
            yield self._messages.NodeWatchResourcesResponse(devices=[self._device(d) for d in devices])

    def _device(self, device: DeviceHealth) -> Any:
        return self._messages.DeviceHealth(
            device=self._messages.DeviceIdentifier(
                pool_name=device.pool_name, device_name=device.device_name
            ),
            health=_VALUES[device.health],
            last_updated_time=device.updated_unix_s,
            health_check_timeout_seconds=device.timeout_s,
            message=_cut(device.message),
        )


class _V1(_Service, health_v1_pb2_grpc.DRAResourceHealthServicer):
    pass


class _V1Alpha1(_Service, health_v1alpha1_pb2_grpc.DRAResourceHealthServicer):
    pass


def _cut(text: str) -> str:
    return text.encode()[:_MAXIMUM_MESSAGE_BYTES].decode(errors="ignore")
