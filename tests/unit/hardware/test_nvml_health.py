"""Health and events through NVML: the stub library in a process of its own, beside the simulated back end."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.stub import nvmlstub
from tests.stub.process import Driver, simulated

from tangram.hardware.health import GpuConditions, XidEvent

pytestmark = pytest.mark.skipif(nvmlstub.COMPILER is None, reason=nvmlstub.NO_COMPILER)


def test_health_is_told_alike_by_nvml_and_simulated(drivers: Callable[[str], Driver]) -> None:
    for name in ("h100-sxm5-80gb-x8", "dgx-1v", "t4-x4"):
        driver = drivers(name)
        assert msgspec.convert(driver.value("health"), GpuConditions) == simulated(name).health(
            driver.gpu.uuid
        )


@pytest.mark.parametrize(
    ("key", "value", "changes"),
    [
        ("ecc", "3", {"uncorrectable_ecc_errors": 3}),
        ("remap", "5 1 1 0", {"row_remap_pending": True}),
        ("remap", "5 1 0 1", {"row_remap_failed": True}),
        ("retired", "1", {"retired_pages_pending": True}),
        ("recovery", "4", {"recovery_action": "drain_and_reset"}),
        ("recovery", "99", {"recovery_action": None}),
        ("down", "2", {"active_nvlinks": 16}),
        ("clocks", str(0x8 | 0x80), {"slowdowns": frozenset({"hardware", "power_brake"})}),
    ],
)
def test_every_condition_is_read(driver: Driver, key: str, value: str, changes: dict[str, Any]) -> None:
    before = msgspec.convert(driver.value("health"), GpuConditions)
    driver.stub("stub_remove", key)
    driver.stub("stub_add", key, value)
    assert msgspec.convert(driver.value("health"), GpuConditions) == replace(before, **changes)
    assert replace(before, **changes) != before


def test_p54_what_a_board_does_not_tell_costs_that_alone(driver: Driver) -> None:
    before = msgspec.convert(driver.value("health"), GpuConditions)
    for key in ("ecc", "remap", "retired", "recovery", "clocks"):
        driver.stub("stub_remove", key)
    assert msgspec.convert(driver.value("health"), GpuConditions) == GpuConditions(
        active_nvlinks=before.active_nvlinks
    )


def test_xid_errors_come_with_their_instance(driver: Driver) -> None:
    assert driver.ask({"call": "watch", "arguments": {"uuids": [driver.gpu.uuid]}})["value"] == []
    nothing = driver.ask({"call": "next_event", "arguments": {"timeout_s": 0.01}})
    assert nothing == {"value": None}
    for place, ids in (("-1 -1", (None, None)), ("3 0", (3, 0))):
        driver.stub("stub_add", "xid", f"79 {place}")
        event = driver.ask({"call": "next_event", "arguments": {"timeout_s": 0.01}})["value"]
        assert msgspec.convert(event, XidEvent) == XidEvent(
            uuid=driver.gpu.uuid, xid=79, gpu_instance_id=ids[0], compute_instance_id=ids[1]
        )


def test_gpus_that_tell_no_events_are_unmonitored(driver: Driver) -> None:
    lost = "GPU-00000000-0000-0000-0000-000000000000"
    driver.stub("stub_add", "events", "0")
    watched = driver.ask({"call": "watch", "arguments": {"uuids": [driver.gpu.uuid, lost]}})
    assert sorted(watched["value"]) == sorted([driver.gpu.uuid, lost])


def test_p78_a_wait_that_fails_is_an_error_and_not_an_event(driver: Driver) -> None:
    driver.ask({"call": "watch", "arguments": {"uuids": [driver.gpu.uuid]}})
    driver.ask({"stub": ["stub_add", -1, "error.nvmlEventSetWait_v2", "999@0"]})
    assert driver.ask({"call": "next_event", "arguments": {"timeout_s": 0.01}})["error"][0] == "HardwareError"
    assert driver.ask({"call": "next_event", "arguments": {"timeout_s": 0.01}}) == {"value": None}
    driver.begin()
    assert (
        "nobody listens" in driver.ask({"call": "next_event", "arguments": {"timeout_s": 0.01}})["error"][1]
    )
