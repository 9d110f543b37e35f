"""Metrics of the node plugin. Gauges are read from state at each scrape, so that they cannot drift."""

from collections import Counter as Tally
from collections.abc import Callable, Iterable

from prometheus_client import Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tangram.base.errors import StateError
from tangram.node.heldstore import HeldStore
from tangram.node.inventory import Inventory

HELD_STATE_SET_ASIDE = Counter(
    "tangram_held_state_set_aside_total", "Held files that could not be used and were set aside."
)
RECONCILE_ACTIONS = Counter(
    "tangram_reconcile_actions_total",
    "What reconcile passes mended, by action.",
    ["action"],
)
RECONCILE_FAILURES = Counter(
    "tangram_reconcile_failures_total", "Claims that a reconcile pass could not look at or mend."
)
STATUS_WRITES = Counter(
    "tangram_claim_status_writes_total", "Writes of status.devices of claims by outcome.", ["outcome"]
)
DISCOVERY_FAILURES = Counter(
    "tangram_discovery_failures_total",
    "Looks at the GPUs that failed as a whole, by kind of error.",
    ["error"],
)


class NodeCollector(Collector):
    """`tangram_gpus`, `tangram_claims_held` and `tangram_claim_device_info` of one node."""

    def __init__(
        self, *, node_name: str, store: HeldStore, inventory: Callable[[], Inventory | None]
    ) -> None:
        self._node_name = node_name
        self._store = store
        self._inventory = inventory

    def collect(self) -> Iterable[Metric]:
        yield self._gpus()
        try:
            claims = self._store.load().claims.values()
        except StateError:
            return
        held = GaugeMetricFamily(
            "tangram_claims_held", "Claims held on this node by phase.", labels=["phase"]
        )
        phases = Tally(claim.phase for claim in claims)
        for phase in ("preparing", "prepared", "unpreparing"):
            held.add_metric([phase], phases[phase])
        yield held
        info = GaugeMetricFamily(
            "tangram_claim_device_info",
            "1 for each device that a claim holds: joins claims with per-GPU metrics of others by UUID.",
            labels=["claim_namespace", "claim_name", "claim_uid", "device", "uuid", "node"],
        )
        for claim in claims:
            for device in claim.devices:
                info.add_metric(
                    [claim.namespace, claim.name, claim.uid, device.device, device.uuid, self._node_name], 1
                )
        yield info

    def _gpus(self) -> Metric:
        gpus = GaugeMetricFamily("tangram_gpus", "GPUs of this node by state.", labels=["state"])
        inventory = self._inventory()
        total = len(inventory.machine.gpus) if inventory else 0
        unhealthy = len(inventory.unhealthy) if inventory else 0
        drained = len(inventory.drained.keys() - inventory.unhealthy.keys()) if inventory else 0
        failed = len(inventory.machine.failures.keys() - inventory.unhealthy.keys()) if inventory else 0
        gpus.add_metric(["healthy"], total - unhealthy - drained)
        gpus.add_metric(["unhealthy"], unhealthy)
        gpus.add_metric(["drained"], drained)
        gpus.add_metric(["not_answering"], failed)
        return gpus
