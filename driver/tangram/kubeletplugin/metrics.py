"""Metrics of the library (Prometheus). Every name is documented by its help text."""

from prometheus_client import Counter, Gauge, Histogram

CLAIM_DURATION = Histogram(
    "tangram_kubelet_claim_duration_seconds",
    "From the kubelet's call to the answer for one claim, waiting included.",
    ["operation", "outcome"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 45, 90),
)
CLAIMS_IN_FLIGHT = Gauge(
    "tangram_kubelet_claims_in_flight",
    "Claims whose preparation or unpreparation was asked for and is not finished, waiting ones included.",
    ["operation"],
)
REGISTERED = Gauge(
    "tangram_kubelet_registered", "1 while the kubelet has accepted this plugin's registration, else 0."
)
REGISTRATION_FAILURES = Counter(
    "tangram_kubelet_registration_failures_total", "How often the kubelet refused this plugin's registration."
)
SOCKETS_RESTORED = Counter(
    "tangram_kubelet_sockets_restored_total",
    "Sockets made again because their file had been removed or replaced.",
    ["socket"],
)
SLICE_WRITES = Counter(
    "tangram_resourceslice_writes_total", "ResourceSlice writes by verb and outcome.", ["verb", "outcome"]
)
POOLS_FAILED = Gauge(
    "tangram_resourceslice_pools_failed", "Pools of this node whose last publication failed, now."
)
FIELDS_DROPPED = Gauge(
    "tangram_resourceslice_fields_dropped",
    "Kinds of fields that the API server does not keep in our ResourceSlices (feature gates off).",
)
