"""The settings of `tangram mps run`."""

from typing import Annotated

from msgspec import Meta

from tangram.base.settings import CommandSettings, DriverRoot, DriverRootMount, KubeletDir, MetricsAddress


class MpsSettings(CommandSettings, frozen=True, kw_only=True):
    """What the supervisor of MPS daemons can be told."""

    kubelet_dir: KubeletDir = "/var/lib/kubelet"
    driver_root: DriverRoot = "/"
    driver_root_mount: DriverRootMount = ""
    metrics_address: Annotated[str, MetricsAddress] = ""
    simulated: Annotated[
        bool, Meta(description="run simulated MPS daemons, for simulated GPUs: true or false")
    ] = False
