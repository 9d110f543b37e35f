"""The kubelet's interfaces, written out by hand: our stubs must speak exactly these on the wire."""

import pytest
from google.protobuf.descriptor import FieldDescriptor, FileDescriptor

from tangram.kubeletplugin.proto import (
    dra_v1_pb2,
    dra_v1beta1_pb2,
    health_v1_pb2,
    health_v1alpha1_pb2,
    registration_v1_pb2,
)

TYPES = {
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_INT64: "int64",
}

CLAIM = {"namespace": (1, "string"), "uid": (2, "string"), "name": (3, "string")}
DEVICE_V1BETA1 = {
    "request_names": (1, "repeated string"),
    "pool_name": (2, "string"),
    "device_name": (3, "string"),
    "cdi_device_ids": (4, "repeated string"),
}


def dra(*, device: dict[str, tuple[int, str]]) -> dict[str, dict[str, tuple[int, str]]]:
    return {
        "NodePrepareResourcesRequest": {"claims": (1, "repeated Claim")},
        "NodePrepareResourcesResponse": {"claims": (1, "map<string, NodePrepareResourceResponse>")},
        "NodePrepareResourceResponse": {"devices": (1, "repeated Device"), "error": (2, "string")},
        "Device": device,
        "NodeUnprepareResourcesRequest": {"claims": (1, "repeated Claim")},
        "NodeUnprepareResourcesResponse": {"claims": (1, "map<string, NodeUnprepareResourceResponse>")},
        "NodeUnprepareResourceResponse": {"error": (1, "string")},
        "Claim": CLAIM,
    }


REGISTRATION: dict[str, dict[str, tuple[int, str]]] = {
    "InfoRequest": {},
    "PluginInfo": {
        "type": (1, "string"),
        "name": (2, "string"),
        "endpoint": (3, "string"),
        "supported_versions": (4, "repeated string"),
    },
    "RegistrationStatus": {"plugin_registered": (1, "bool"), "error": (2, "string")},
    "RegistrationStatusResponse": {},
}
HEALTH: dict[str, dict[str, tuple[int, str]]] = {
    "NodeWatchResourcesRequest": {},
    "NodeWatchResourcesResponse": {"devices": (1, "repeated DeviceHealth")},
    "DeviceIdentifier": {"pool_name": (1, "string"), "device_name": (2, "string")},
    "DeviceHealth": {
        "device": (1, "DeviceIdentifier"),
        "health": (2, "HealthStatus"),
        "last_updated_time": (3, "int64"),
        "health_check_timeout_seconds": (4, "int64"),
        "message": (5, "string"),
    },
}
DRA_METHODS = {
    "NodePrepareResources": ("NodePrepareResourcesRequest", "NodePrepareResourcesResponse"),
    "NodeUnprepareResources": ("NodeUnprepareResourcesRequest", "NodeUnprepareResourcesResponse"),
}
HEALTH_METHODS = {"NodeWatchResources": ("NodeWatchResourcesRequest", "stream NodeWatchResourcesResponse")}
REGISTRATION_METHODS = {
    "GetInfo": ("InfoRequest", "PluginInfo"),
    "NotifyRegistrationStatus": ("RegistrationStatus", "RegistrationStatusResponse"),
}

FILES = [
    pytest.param(
        dra_v1_pb2.DESCRIPTOR,
        "k8s.io.kubelet.pkg.apis.dra.v1",
        dra(device={**DEVICE_V1BETA1, "share_id": (5, "optional string")}),
        {"DRAPlugin": DRA_METHODS},
        id="dra-v1",
    ),
    pytest.param(
        dra_v1beta1_pb2.DESCRIPTOR,
        "k8s.io.kubelet.pkg.apis.dra.v1beta1",
        dra(device=DEVICE_V1BETA1),
        {"DRAPlugin": DRA_METHODS},
        id="dra-v1beta1",
    ),
    pytest.param(
        registration_v1_pb2.DESCRIPTOR,
        "pluginregistration",
        REGISTRATION,
        {"Registration": REGISTRATION_METHODS},
        id="registration",
    ),
    pytest.param(
        health_v1_pb2.DESCRIPTOR, "v1", HEALTH, {"DRAResourceHealth": HEALTH_METHODS}, id="health-v1"
    ),
    pytest.param(
        health_v1alpha1_pb2.DESCRIPTOR,
        "v1alpha1",
        HEALTH,
        {"DRAResourceHealth": HEALTH_METHODS},
        id="health-v1alpha1",
    ),
]


def type_name(field: FieldDescriptor) -> str:
    if field.message_type is not None:
        return str(field.message_type.name)
    if field.enum_type is not None:
        return str(field.enum_type.name)
    return TYPES[field.type]


def label_and_type(field: FieldDescriptor) -> str:
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
        return f"map<{type_name(key)}, {type_name(value)}>"
    if field.is_repeated:
        return f"repeated {type_name(field)}"
    # proto3 `optional` is on the wire what a missing or present field is; the others have no presence.
    presence = field.message_type is None and field.has_presence
    return f"optional {type_name(field)}" if presence else type_name(field)


@pytest.mark.parametrize(("file", "package", "messages", "services"), FILES)
def test_messages(
    file: FileDescriptor, package: str, messages: dict[str, dict[str, tuple[int, str]]], services: object
) -> None:
    assert file.package == package
    assert {
        message.name: {field.name: (field.number, label_and_type(field)) for field in message.fields}
        for message in file.message_types_by_name.values()
    } == messages


@pytest.mark.parametrize(("file", "package", "messages", "services"), FILES)
def test_services(
    file: FileDescriptor, package: str, messages: object, services: dict[str, dict[str, tuple[str, str]]]
) -> None:
    assert {
        service.name: {
            method.name: (
                ("stream " if method.client_streaming else "") + method.input_type.name,
                ("stream " if method.server_streaming else "") + method.output_type.name,
            )
            for method in service.methods
        }
        for service in file.services_by_name.values()
    } == services
    assert {service.full_name for service in file.services_by_name.values()} == {
        f"{package}.{name}" for name in services
    }


@pytest.mark.parametrize("module", [health_v1_pb2, health_v1alpha1_pb2])
def test_health_values(module: object) -> None:
    descriptor = module.DESCRIPTOR.enum_types_by_name["HealthStatus"]  # type: ignore[attr-defined]
    assert {value.name: value.number for value in descriptor.values} == {
        "UNKNOWN": 0,
        "HEALTHY": 1,
        "UNHEALTHY": 2,
    }


@pytest.mark.parametrize(("file", "package", "messages", "services"), FILES)
def test_file_names_belong_to_this_package(
    file: FileDescriptor, package: object, messages: object, services: object
) -> None:
    """A bare `dra.proto` would collide in the descriptor pool with any other library that ships one."""
    assert file.name.startswith("tangram/kubeletplugin/proto/")


def test_bytes_on_the_wire() -> None:
    """One message by hand: tag 0x0a is field 1 with length, 0x12 field 2, 0x1a field 3."""
    claim = dra_v1_pb2.Claim(namespace="n", uid="u", name="c")
    assert claim.SerializeToString() == b"\x0a\x01n\x12\x01u\x1a\x01c"
    assert dra_v1beta1_pb2.Claim.FromString(claim.SerializeToString()).name == "c"
