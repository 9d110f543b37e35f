"""Drivers over the stub library, for all tests of a module."""

from collections.abc import Callable, Iterator

import pytest
from tests.stub import nvmlstub
from tests.stub.process import Driver, machine_of


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Driver]]:
    library = nvmlstub.build(tmp_path_factory.mktemp("stub") / "library.so")
    started: dict[str, Driver] = {}

    def of(name: str) -> Driver:
        if name not in started:
            started[name] = Driver(tmp_path_factory.mktemp("root") / "root", library, machine_of(name))
        started[name].begin()
        return started[name]

    yield of
    for driver in started.values():
        driver.end()


@pytest.fixture
def driver(drivers: Callable[[str], Driver]) -> Driver:
    """An H100 in MIG mode."""
    driver = drivers("h100-sxm5-80gb-x8")
    assert driver.value("set_mig_mode", enabled=True) == {"current": True, "pending": True}
    return driver
