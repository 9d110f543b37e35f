"""The settings of `tangram node run`."""

from typing import Annotated

from msgspec import Meta

from tangram.base.settings import CommandSettings
from tangram.model.devices import Allocator

_AbsolutePath = Meta(pattern=r"^/", extra={"expected": "an absolute path"})


class NodeSettings(CommandSettings, frozen=True, kw_only=True):
    """What the node plugin can be told."""

    node_name: Annotated[
        str,
        Meta(
            description="name of this node's Node object; in a DaemonSet take it from fieldRef spec.nodeName",
            min_length=1,
            max_length=253,
            pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$",
            extra={"expected": "a node name (lower case letters, digits, '-' and '.')"},
        ),
    ]
    pod_uid: Annotated[
        str,
        Meta(
            description="UID of the plugin's own pod: with it two instances overlap in a rolling update"
            " without a gap; empty outside of a pod",
            max_length=63,
            pattern=r"^[A-Za-z0-9-]*$",
            extra={"expected": "a pod UID"},
        ),
    ] = ""
    kubelet_dir: Annotated[str, Meta(description="the kubelet's root directory"), _AbsolutePath] = (
        "/var/lib/kubelet"
    )
    cdi_root: Annotated[
        str, Meta(description="directory the container runtime reads CDI files from"), _AbsolutePath
    ] = "/var/run/cdi"
    driver_root: Annotated[
        str,
        Meta(
            description="root of the GPU driver's installation, e.g. /run/nvidia/driver with the GPU Operator"
        ),
        _AbsolutePath,
    ] = "/"
    driver_root_mount: Annotated[
        str,
        Meta(
            description="where a container of this process sees driverRoot; empty: at the same path",
            pattern=r"^$|^/",
            extra={"expected": "an absolute path, or nothing"},
        ),
    ] = ""
    allocator: Annotated[
        Allocator,
        Meta(
            description="who allocates this node's devices: Tangram's controller, or kube-scheduler itself"
            " (autoscaled pools, native extended resources)"
        ),
    ] = "controller"
    simulate: Annotated[
        str,
        Meta(
            description="publish simulated GPUs instead of real ones: the name of a shipped machine such as"
            " a100-sxm4-80gb-x8, or a file; empty: the real GPUs"
        ),
    ] = ""
    rescan_interval_s: Annotated[
        float,
        Meta(description="how often the GPUs are looked at again", ge=1, le=3600, extra={"unit": "seconds"}),
    ] = 30.0
