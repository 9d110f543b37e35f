"""The driver that the kubelet plugin serves: prepares, then tells what came of it."""

from collections.abc import Awaitable, Callable, Sequence

from tangram.base.clock import Clock
from tangram.base.errors import DeviceHeldError, KubeError, NoRoomError, TangramError
from tangram.base.logs import get_logger
from tangram.kube.objects import ResourceClaim
from tangram.kubeletplugin.driver import ClaimReference, PreparedDevice
from tangram.node.held import HeldClaim
from tangram.node.inventory import Inventory
from tangram.node.prepare import Preparer
from tangram.node.report import Reporter

_log = get_logger("node")

FREED_WITHIN_S = 15.0
"""How long a claim waits for a device whose holder is gone. The kubelet gives a call 45 s, but asks again
only a minute or more after one that failed."""
_LOOK_AGAIN_S = 0.5


class NodeDriver:
    """A `tangram.kubeletplugin.driver.Driver` for GPUs.

    `lives` tells whether a claim exists and is still allocated on this node; it may raise KubeError. `tidy`
    undoes what was begun and not finished.
    """

    def __init__(
        self,
        *,
        preparer: Preparer,
        reporter: Reporter,
        inventory: Callable[[], Inventory | None],
        lives: Callable[[ClaimReference], Awaitable[bool]],
        tidy: Callable[[], Awaitable[None]],
        clock: Clock,
    ) -> None:
        self._preparer = preparer
        self._reporter = reporter
        self._inventory = inventory
        self._lives = lives
        self._tidy = tidy
        self._clock = clock

    async def prepare(self, claim: ResourceClaim) -> Sequence[PreparedDevice]:
        try:
            held, new = await self._prepare_once_free(claim)
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

    async def _prepare_once_free(self, claim: ResourceClaim) -> tuple[HeldClaim, bool]:
        deadline_s = self._clock.monotonic_s() + FREED_WITHIN_S
        tidied = False
        while True:
            try:
                return await self._preparer.prepare(claim)
            except NoRoomError as error:
                # Perhaps the way is blocked by what a process before this one has left half done.
                if tidied:
                    raise
                tidied = True
                _log.info("tidies_for_room", claim=claim.metadata.uid, error=error.cause)
                await self._tidy()
                continue
            except DeviceHeldError as error:
                if self._clock.monotonic_s() >= deadline_s or not await self._ends(error):
                    raise
                _log.info("waits_for_device", device=error.device, holder=error.holder)
            await self._clock.sleep(_LOOK_AGAIN_S)

    async def _ends(self, error: DeviceHeldError) -> bool:
        """Whether the holder is a claim that is gone, as that of a force-deleted pod is at once: the kubelet
        unprepares it as soon as its containers have ended."""
        namespace, _, name = error.holder.partition("/")
        if not name:
            return False
        try:
            return not await self._lives(ClaimReference(namespace=namespace, name=name, uid=error.holder_uid))
        except KubeError:
            return False

    async def unprepare(self, claim: ClaimReference) -> None:
        await self._preparer.unprepare(claim.uid)
        self._reporter.forget(claim.uid)
