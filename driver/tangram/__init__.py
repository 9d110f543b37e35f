"""Tangram: a Kubernetes DRA driver that fits GPUs to claims."""

__version__ = "0.1.0"

DRIVER_NAME = "gpu.resource.admin"
"""The driver's name: of ResourceSlices, device classes, CDI vendor and API group."""
