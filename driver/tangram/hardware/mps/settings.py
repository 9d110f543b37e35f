"""The settings of `tangram mps run`."""

from typing import Annotated

from msgspec import Meta

from tangram.base.settings import AbsolutePath, CommandSettings, MaybeAbsolutePath, MetricsAddress


class MpsSettings(CommandSettings, frozen=True, kw_only=True):
    """What the supervisor of MPS daemons can be told."""

    kubelet_dir: Annotated[str, Meta(description="the kubelet's root directory"), AbsolutePath] = (
        "/var/lib/kubelet"
    )
    driver_root: Annotated[
        str,
        Meta(
            description="root of the GPU driver's installation, e.g. /run/nvidia/driver with the GPU Operator"
        ),
        AbsolutePath,
    ] = "/"
    driver_root_mount: Annotated[
        str,
        Meta(description="where a container of this process sees driverRoot; empty: at the same path"),
        MaybeAbsolutePath,
    ] = ""
    metrics_address: Annotated[str, MetricsAddress] = ""
    simulated: Annotated[
        bool, Meta(description="run simulated MPS daemons, for simulated GPUs: true or false")
    ] = False
