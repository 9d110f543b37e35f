"""What a driver author implements, and the values that pass between the library and the driver."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tangram.kube.objects import ResourceClaim
from tangram.kube.resources import Resource


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimReference:
    """A claim as the kubelet names it. The claim itself may be deleted already when it is unprepared."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"claim {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDevice:
    """A device that containers may use now.

    `request_names` are the requests it serves (`gpu` or `gpu/a100`: the library strips the subrequest);
    `cdi_device_ids` are `<vendor>/<class>=<name>`; `share_id` is the result's `shareID`.
    """

    request_names: tuple[str, ...]
    pool_name: str
    device_name: str
    cdi_device_ids: tuple[str, ...]
    share_id: str | None = None


class Driver(Protocol):
    """What knows the devices. Calls for different claims run at the same time, those for one claim do not.

    A `TangramError` becomes the claim's error as it is; any other exception is logged with its traceback
    and becomes an internal error of that claim. Neither disturbs the other claims of the call.
    """

    async def prepare(self, claim: ResourceClaim) -> Sequence[PreparedDevice]:
        """Makes the claim's devices of this driver usable; repeating it gives the same CDI ids.

        The claim has the uid the kubelet asked for, and an allocation. It is the driver's duty to refuse a
        device that another claim still holds. The call is not cancelled when the kubelet gives up on it.
        """
        ...

    async def unprepare(self, claim: ClaimReference) -> None:
        """Undoes `prepare`, from what the driver remembers under the uid; an unknown claim is no error."""
        ...


class ClaimReader(Protocol):
    """What the library needs of a Kubernetes client to prepare claims; `tangram.kube.client.Client` fits."""

    async def get(self, resource: Resource, *, name: str, namespace: str = "") -> bytes:
        """The JSON of one object; raises KubeError."""
        ...
