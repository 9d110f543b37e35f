"""The controller's metrics."""

from prometheus_client import Counter, Gauge, Histogram

ALLOCATIONS = Counter("tangram_allocations", "Decisions on pods that need devices, by outcome.", ["outcome"])
DECISION_SECONDS = Histogram(
    "tangram_decision_duration_seconds",
    "Time to decide one pod, without writing.",
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5),
)
WRITE_SECONDS = Histogram(
    "tangram_allocation_write_duration_seconds",
    "Time to write the allocation of one claim.",
    buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5, 30),
)
WAITING = Gauge("tangram_pods_waiting", "Pods that wait for devices.")
VETOES = Counter("tangram_scheduler_vetoes", "Allocations that kube-scheduler took back.")
DEALLOCATIONS = Counter(
    "tangram_deallocations", "Allocations taken back because no pod used them, by cause.", ["cause"]
)
DOUBLE_USE = Counter("tangram_double_use", "Times a device was seen in more than one claim.")
LEADER = Gauge("tangram_leader", "1 while this process is the active controller.")
