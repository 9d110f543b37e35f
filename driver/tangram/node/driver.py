"""The driver that the kubelet plugin serves: prepares, then tells what came of it."""

from collections.abc import Callable, Sequence

from tangram.base.errors import TangramError
from tangram.kube.objects import ResourceClaim
from tangram.kubeletplugin.driver import ClaimReference, PreparedDevice
from tangram.node.inventory import Inventory
from tangram.node.prepare import Preparer
from tangram.node.report import Reporter


class NodeDriver:
    """A `tangram.kubeletplugin.driver.Driver` for GPUs."""

    def __init__(
        self,
        *,
        preparer: Preparer,
        reporter: Reporter,
        inventory: Callable[[], Inventory | None],
    ) -> None:
        self._preparer = preparer
        self._reporter = reporter
        self._inventory = inventory

    async def prepare(self, claim: ResourceClaim) -> Sequence[PreparedDevice]:
        try:
            held, new = await self._preparer.prepare(claim)
        except TangramError as error:
            self._reporter.failed(claim, error)
            raise
        self._reporter.prepared(claim, held, self._inventory(), new=new)
        return [
            PreparedDevice(
                request_names=result.request_names,
                pool_name=result.pool,
                device_name=result.device,
                cdi_device_ids=result.cdi_device_ids,
                share_id=result.share_id,
            )
            for result in held.result or ()
        ]

    async def unprepare(self, claim: ClaimReference) -> None:
        await self._preparer.unprepare(claim.uid)
        self._reporter.forget(claim.uid)
