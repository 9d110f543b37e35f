"""A fake Kubernetes API server for tests and the playground."""

from tangram.testing.apiserver.catalog import (
    CONFIG_MAPS,
    DEFAULT_VERSION,
    DEPLOYMENTS,
    JOBS,
    NAMESPACES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCES,
    VERSIONS,
)
from tangram.testing.apiserver.faults import Fault, Faults
from tangram.testing.apiserver.http import LoggedRequest
from tangram.testing.apiserver.server import FakeApiServer

__all__ = [
    "CONFIG_MAPS",
    "DEFAULT_VERSION",
    "DEPLOYMENTS",
    "JOBS",
    "NAMESPACES",
    "RESOURCES",
    "RESOURCE_CLAIM_TEMPLATES",
    "VERSIONS",
    "FakeApiServer",
    "Fault",
    "Faults",
    "LoggedRequest",
]
