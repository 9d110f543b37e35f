"""The settings of `tangram node run`."""

from typing import Annotated, Literal, get_args

from msgspec import Meta

from tangram import DRIVER_NAME
from tangram.base.settings import (
    DNS_SUBDOMAIN,
    AbsolutePath,
    CommandSettings,
    DriverRoot,
    DriverRootMount,
    KubeletDir,
    MaybeAbsolutePath,
    Text,
)
from tangram.model.devices import Allocator, Kind, pool_name
from tangram.node.inventory import Leftovers, Policy

# The pool is named after the node, and its name is limited to 253 (resource/v1 PoolNameMaxLength).
_LONGEST_NODE_NAME = 253 - len(pool_name(DRIVER_NAME, ""))

_KIND = "(gpu|mig|mps|timeslice)"


class NodeSettings(CommandSettings, frozen=True, kw_only=True):
    """What the node plugin can be told."""

    node_name: Annotated[
        str,
        Meta(
            description="name of this node's Node object; in a DaemonSet take it from fieldRef spec.nodeName",
            max_length=_LONGEST_NODE_NAME,
            pattern=DNS_SUBDOMAIN,
            extra={"expected": f"a node name (up to {_LONGEST_NODE_NAME} of a-z, 0-9, '-' and '.')"},
        ),
    ]
    pod_uid: Annotated[
        str,
        Meta(
            description="UID of the plugin's own pod: with it two instances overlap in a rolling update"
            " without a gap; empty outside of a pod",
            max_length=63,
            pattern=r"\A[A-Za-z0-9-]*\Z",
            extra={"expected": "a pod UID"},
        ),
    ] = ""
    kubelet_dir: KubeletDir = "/var/lib/kubelet"
    cdi_root: Annotated[
        str, Meta(description="directory the container runtime reads CDI files from"), AbsolutePath
    ] = "/var/run/cdi"
    driver_root: DriverRoot = "/"
    driver_root_mount: DriverRootMount = ""
    allocator: Annotated[
        Allocator,
        Meta(
            description="who allocates this node's devices: Tangram's controller, or kube-scheduler itself"
            " (autoscaled pools, native extended resources)"
        ),
    ] = "controller"
    kinds: Annotated[
        str,
        Meta(
            description="which devices to publish of a GPU, where its MIG mode reaches them, separated by"
            " commas: gpu (the whole GPU), mig (MIG placements), mps and timeslice (shares by MPS and"
            " by time-slicing)",
            pattern=rf"\A{_KIND}(,{_KIND})*\Z",
            extra={"expected": "kinds such as gpu,mig (of gpu, mig, mps, timeslice)"},
        ),
    ] = "gpu,mig,timeslice"
    replicas: Annotated[
        int,
        Meta(
            description="how many claims may share a GPU by time-slicing; a share by MPS that does not say"
            " its size is such a part too",
            ge=2,
            le=64,
        ),
    ] = 4
    mig_mode: Annotated[
        Literal["static", "dynamic"],
        Meta(
            description="static: each GPU stays in the MIG mode in which it is found; dynamic: the plugin"
            " switches it for a claim while the GPU is idle (Hopper and later, not in virtual machines)"
        ),
    ] = "static"
    exclusive_compute_mode: Annotated[
        bool,
        Meta(
            description="let one process at a time use a GPU that a claim has as a whole (compute mode"
            " EXCLUSIVE_PROCESS); what it was before is restored"
        ),
    ] = False
    leftovers: Annotated[
        Leftovers,
        Meta(
            description="processes, or memory in use, that others have left on a GPU which a claim gets as a"
            " whole: ignore (do not look), warn (an event) or refuse (the pod waits)"
        ),
    ] = "ignore"
    simulate: Annotated[
        str,
        Meta(
            description="publish simulated GPUs instead of real ones: the name of a shipped machine such as"
            " a100-sxm4-80gb-x8, or a file; empty: the real GPUs"
        ),
        Text,
    ] = ""
    simulate_state_dir: Annotated[
        str,
        Meta(
            description="directory that keeps the state of simulated GPUs over restarts of this process,"
            " until the next boot, as hardware does; empty: none"
        ),
        MaybeAbsolutePath,
    ] = ""
    rescan_interval_s: Annotated[
        float,
        Meta(description="how often the GPUs are looked at again", ge=1, le=3600, extra={"unit": "seconds"}),
    ] = 30.0

    @property
    def policy(self) -> Policy:
        """What the settings say about devices."""
        known: tuple[Kind, ...] = get_args(Kind)
        return Policy(
            kinds=tuple(kind for kind in known if kind in self.kinds.split(",")),
            replicas=self.replicas,
            dynamic=self.mig_mode == "dynamic",
            exclusive_compute_mode=self.exclusive_compute_mode,
            leftovers=self.leftovers,
        )
