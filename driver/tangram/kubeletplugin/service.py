"""The DRA service for one gRPC version: v1 and v1beta1 differ only in the message classes."""

from collections.abc import Iterable
from types import ModuleType
from typing import Any

import grpc

from tangram.kubeletplugin.claims import Answer, ClaimService
from tangram.kubeletplugin.driver import ClaimReference, PreparedDevice
from tangram.kubeletplugin.proto import dra_v1_pb2, dra_v1_pb2_grpc, dra_v1beta1_pb2, dra_v1beta1_pb2_grpc

# The kubelet takes the first one that it knows, in this order: newest first.
SERVICES = ("v1.DRAPlugin", "v1beta1.DRAPlugin")


def add_dra_services(server: grpc.aio.Server, claims: ClaimService) -> None:
    """Serves both versions over the one implementation."""
    dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(_V1(dra_v1_pb2, claims), server)
    dra_v1beta1_pb2_grpc.add_DRAPluginServicer_to_server(_V1Beta1(dra_v1beta1_pb2, claims), server)


class _Service:
    def __init__(self, messages: ModuleType, claims: ClaimService) -> None:
        # Two modules of the same shape: no type says so.
        self._messages: Any = messages
        self._claims = claims

    async def NodePrepareResources(self, request: Any, context: object) -> Any:  # noqa: N802, ARG002
        answers = await self._claims.prepare(_references(request.claims))
        return self._messages.NodePrepareResourcesResponse(
            claims={uid: self._prepared(answer) for uid, answer in answers.items()}
        )

    async def NodeUnprepareResources(self, request: Any, context: object) -> Any:  # noqa: N802, ARG002
        answers = await self._claims.unprepare(_references(request.claims))
        return self._messages.NodeUnprepareResourcesResponse(
            claims={
                uid: self._messages.NodeUnprepareResourceResponse(error=answer.error)
                for uid, answer in answers.items()
            }
        )

    def _prepared(self, answer: Answer) -> Any:
        return self._messages.NodePrepareResourceResponse(
            devices=[self._device(device) for device in answer.devices], error=answer.error
        )

    def _device(self, device: PreparedDevice) -> Any:
        message = self._messages.Device(
            request_names=device.request_names,
            pool_name=device.pool_name,
            device_name=device.device_name,
            cdi_device_ids=device.cdi_device_ids,
        )
        # v1beta1 has no such field, and its kubelets no shared devices.
        if device.share_id is not None and "share_id" in message.DESCRIPTOR.fields_by_name:
            message.share_id = device.share_id
        return message


class _V1(_Service, dra_v1_pb2_grpc.DRAPluginServicer):
    pass


class _V1Beta1(_Service, dra_v1beta1_pb2_grpc.DRAPluginServicer):
    pass


def _references(claims: Iterable[Any]) -> list[ClaimReference]:
    return [ClaimReference(namespace=claim.namespace, name=claim.name, uid=claim.uid) for claim in claims]
