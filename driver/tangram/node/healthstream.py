"""What the kubelet shows of devices in the status of pods (KEP-4680); told again and again: it forgets."""

from collections.abc import Callable, Sequence

from tangram.base.clock import Clock
from tangram.kubeletplugin.health import DeviceHealth
from tangram.node.inventory import Inventory

_FORGOTTEN_AFTER_ROUNDS = 3


class HealthStream:
    """Tells `tell` the health of every device of the pool: when it changes, and every `interval_s`."""

    def __init__(
        self,
        *,
        tell: Callable[[Sequence[DeviceHealth]], None],
        pool: str,
        inventory: Callable[[], Inventory | None],
        clock: Clock,
        interval_s: float,
    ) -> None:
        self._tell = tell
        self._pool = pool
        self._inventory = inventory
        self._clock = clock
        self._interval_s = interval_s

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._clock.sleep(self._interval_s)
            self.tell()

    def tell(self) -> None:
        """Once, if the GPUs are known."""
        if (inventory := self._inventory()) is None:
            return
        now_s = int(self._clock.now().timestamp())
        self._tell(
            [
                DeviceHealth(
                    pool_name=self._pool,
                    device_name=name,
                    health="unhealthy" if illness else "healthy",
                    updated_unix_s=now_s,
                    timeout_s=max(60, int(_FORGOTTEN_AFTER_ROUNDS * self._interval_s)),
                    message=illness or inventory.warnings.get(offer.gpu.uuid, ""),
                )
                for name, offer in inventory.devices.items()
                for illness in [inventory.illness(offer.gpu.uuid, offer.kind)]
            ]
        )
