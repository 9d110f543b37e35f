"""Which unit tests are thorough: left out by `./hack/test --fast`."""

from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_THOROUGH = (
    "allocation/conformance/test_recorded.py",
    "allocation/structured/test_hostile.py",
    "allocation/structured/test_invariants.py",
    "allocation/structured/test_parameters.py",
    "api/test_demand.py",
    "bad_input",
    "cel/test_hostile.py",
    "cel/test_properties.py",
    "cel/test_recorded.py",
    "cli/test_probe.py",
    "controller/test_giving_back.py",
    "controller/test_interleavings.py",
    "controller/test_old_servers.py",
    "deploy/test_manifests.py",
    "hack/conformance/test_problems.py",
    "hardware/test_nvml_stub.py",
    "node/test_kind_crashes.py",
    "node/test_kind_faults.py",
    "node/test_kind_machine.py",
    "node/test_pools.py",
)


def pytest_configure() -> None:
    """A name that is gone would quietly make a slow test a fast one again."""
    missing = [name for name in _THOROUGH if not (_HERE / name).exists()]
    if missing:
        raise pytest.UsageError(f"tests/unit/conftest.py names {missing}, which are not there")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks them."""
    thorough = [_HERE / name for name in _THOROUGH]
    for item in items:
        if any(item.path.is_relative_to(path) for path in thorough):
            item.add_marker(pytest.mark.thorough)
