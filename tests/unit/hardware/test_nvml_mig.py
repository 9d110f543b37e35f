"""MIG through NVML: the stub library in a process of its own, beside the simulated back end.

The same calls in the same order must give the same answers and the same kinds of errors on both.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.stub import nvmlstub
from tests.stub.process import Driver, machine_of, simulated

from tangram.base.errors import HardwareError
from tangram.hardware.backend import GpuProcess, MigModes
from tangram.hardware.simulated import SimulatedBackend
from tangram.model.gpu import Gpu, GpuUuid, Machine
from tangram.model.mig import MigPlacement

BOARDS = ("h100-sxm5-80gb-x8", "a100-sxm4-80gb-x8", "b200-sxm6-180gb-x8")

pytestmark = pytest.mark.skipif(nvmlstub.COMPILER is None, reason=nvmlstub.NO_COMPILER)


def create(driver: Driver, profile: int, start: int, size: int) -> dict[str, Any]:
    return driver.call("create_gpu_instance", profile_id=profile, placement=[start, size])


STEPS = st.one_of(
    st.tuples(st.just("create_gpu_instance"), st.integers(0, 10**6)),
    st.tuples(st.just("create_compute_instance"), st.integers(0, 14)),
    st.tuples(st.just("destroy_compute_instance"), st.integers(0, 14)),
    st.tuples(st.just("destroy_gpu_instance"), st.integers(0, 14)),
    st.tuples(st.just("set_mig_mode"), st.integers(0, 1)),
    st.tuples(st.just("set_compute_mode"), st.integers(0, 3)),
    st.tuples(st.just("processes"), st.integers(-2, 14)),
)
COMPUTE_MODES = ("default", "exclusive_process", "prohibited", "exclusive_thread")


class Both:
    """Both back ends, and what they answer."""

    def __init__(self, driver: Driver, simulator: SimulatedBackend) -> None:
        self.driver, self.simulator = driver, simulator
        self.gpu: Gpu = next(gpu for gpu in simulator.discover().gpus if gpu.uuid == driver.gpu.uuid)

    def step(self, name: str, number: int) -> None:
        if name == "processes":
            self.use(number)
        else:
            arguments = self.arguments(name, number)
            theirs = self.driver.call(name, **arguments)
            assert self.told(theirs) == self.told(self.simulate(name, arguments)), name
        for look in ("gpu_instances", "mig_modes", "compute_mode", "processes"):
            theirs = self.driver.call(look)
            assert self.told(theirs) == self.told(self.simulate(look, {})), look

    def use(self, instance: int) -> None:
        """A process on that instance, on the whole GPU (-1), or none any more (-2)."""
        self.driver.stub("stub_remove", "process")
        processes = []
        if instance >= -1:
            placed = instance if instance >= 0 else None
            if placed is not None and all(
                there.gpu_instance_id != placed or not there.compute_instances
                for there in self.simulator.gpu_instances(self.gpu.uuid)
            ):
                placed = None
            processes = [
                GpuProcess(
                    pid=7,
                    memory_bytes=2**20,
                    gpu_instance_id=placed,
                    compute_instance_id=None if placed is None else 0,
                )
            ]
            place = "-1 -1" if placed is None else f"{placed} 0"
            self.driver.stub("stub_add", "process", f"7 {2**20} {place}")
        self.simulator.set_processes(self.gpu.uuid, processes)

    def arguments(self, name: str, number: int) -> dict[str, Any]:
        if name == "create_gpu_instance":
            places = [(p.profile_id, place) for p in self.gpu.mig_profiles for place in p.placements]
            profile, place = places[number % len(places)]
            return {"profile_id": profile, "placement": [place.start, place.size]}
        if name == "set_mig_mode":
            return {"enabled": bool(number)}
        if name == "set_compute_mode":
            return {"mode": COMPUTE_MODES[number]}
        if name == "destroy_compute_instance":
            return {"gpu_instance_id": number, "compute_instance_id": 0}
        return {"gpu_instance_id": number}

    def simulate(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        arguments = dict(arguments)
        positional = [arguments.pop("mode")] if "mode" in arguments else []
        if "placement" in arguments:
            arguments["placement"] = MigPlacement(*arguments["placement"])
        try:
            value = getattr(self.simulator, name)(self.gpu.uuid, *positional, **arguments)
        except HardwareError as error:
            return {"error": [type(error).__name__, error.cause]}
        return {"value": json.loads(msgspec.json.encode(value))}

    @staticmethod
    def told(answer: dict[str, Any]) -> Any:
        """The answer without the UUIDs that every creation makes anew, or the kind of the error."""
        return answer["error"][0] if "error" in answer else without_uuids(answer["value"])


def without_uuids(value: Any) -> Any:
    if isinstance(value, dict):
        assert str(value.get("uuid", "MIG-")).startswith("MIG-")
        return {key: without_uuids(inner) for key, inner in value.items() if key != "uuid"}
    return [without_uuids(inner) for inner in value] if isinstance(value, list) else value


@settings(max_examples=60)
@given(name=st.sampled_from(BOARDS), steps=st.lists(STEPS, max_size=25))
def test_p25_any_sequence_of_calls_ends_alike_on_nvml_and_simulated(
    drivers: Callable[[str], Driver], name: str, steps: list[tuple[str, int]]
) -> None:
    both = Both(drivers(name), simulated(name))
    if both.simulator.mig_modes(both.gpu.uuid).current is False:
        both.step("set_mig_mode", 1)
    for step, number in steps:
        both.step(step, number)


def test_p16_a_failure_at_any_call_of_a_creation_leaves_nothing_of_it(driver: Driver) -> None:
    """Whatever NVML call fails once: what is reported as failed is not there."""
    calls = (
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        "nvmlGpuInstanceGetInfo",
        "nvmlDeviceGetGpuInstanceById",
        "nvmlGpuInstanceGetComputeInstanceProfileInfo",
        "nvmlGpuInstanceCreateComputeInstance",
        "nvmlComputeInstanceGetInfo_v2",
        "nvmlDeviceGetMigDeviceHandleByIndex",
        "nvmlDeviceGetGpuInstanceId",
        "nvmlDeviceGetUUID",
    )
    for call in calls:
        driver.stub("stub_add", f"error.{call}", f"{pynvml.NVML_ERROR_UNKNOWN}@0")
        made = create(driver, 9, 0, 4)
        if "error" in made:
            driver.stub("stub_remove", f"error.{call}")
            assert driver.instances() == (), call
            continue
        failed = driver.call("create_compute_instance", gpu_instance_id=made["value"])
        driver.stub("stub_remove", f"error.{call}")
        (left,) = driver.instances()
        assert "error" in failed, call
        assert left.compute_instances == (), call
        driver.value("destroy_gpu_instance", gpu_instance_id=made["value"])
        assert driver.instances() == (), call


def test_p17_the_uuid_is_that_of_the_instance_and_new_at_each_creation(driver: Driver) -> None:
    uuids = set()
    for _ in range(2):
        instance = driver.value("create_gpu_instance", profile_id=9, placement=[4, 4])
        compute = driver.value("create_compute_instance", gpu_instance_id=instance)
        uuids.add(compute["uuid"])
        assert driver.instances()[0].compute_instances[0].uuid == compute["uuid"] != driver.gpu.uuid
        driver.value("destroy_compute_instance", gpu_instance_id=instance, compute_instance_id=0)
        driver.value("destroy_gpu_instance", gpu_instance_id=instance)
    assert len(uuids) == 2
    assert all(uuid.startswith("MIG-") for uuid in uuids)


def test_p18_busy_says_who_is_on_the_gpu_and_nothing_is_lost(driver: Driver) -> None:
    instance = create(driver, 9, 0, 4)["value"]
    driver.value("create_compute_instance", gpu_instance_id=instance)
    driver.stub("stub_add", "process", f"4711 {2**20} {instance} 0")
    answer = driver.call("destroy_compute_instance", gpu_instance_id=instance, compute_instance_id=0)
    assert answer["error"][0] == "GpuBusyError"
    assert answer["error"][1].endswith("on this GPU: pid 4711")
    assert len(driver.instances()[0].compute_instances) == 1
    driver.stub("stub_remove", "process")
    driver.value("destroy_compute_instance", gpu_instance_id=instance, compute_instance_id=0)
    # Monitoring may still hold the GPU instance: its compute instance stays gone, a later call completes.
    driver.stub("stub_add", "error.nvmlGpuInstanceDestroy", f"{pynvml.NVML_ERROR_IN_USE}@0")
    assert driver.call("destroy_gpu_instance", gpu_instance_id=instance)["error"][0] == "GpuBusyError"
    assert driver.instances()[0].compute_instances == ()
    driver.value("destroy_compute_instance", gpu_instance_id=instance, compute_instance_id=0)
    driver.value("destroy_gpu_instance", gpu_instance_id=instance)
    assert driver.instances() == ()


def test_p19_a_gpu_in_a_virtual_machine_needs_a_reset(drivers: Callable[[str], Driver]) -> None:
    driver = drivers("h100-sxm5-80gb-x8")
    driver.stub("stub_remove", "virtual")
    driver.stub("stub_add", "virtual", "1")
    machine = msgspec.convert(driver.ask({"call": "discover", "arguments": {}})["value"], Machine)
    assert [gpu.virtual for gpu in machine.gpus] == [gpu.uuid == driver.gpu.uuid for gpu in machine.gpus]
    assert driver.value("set_mig_mode", enabled=True) == {"current": False, "pending": True}


def test_p28_profiles_are_numbered_by_each_gpu_itself(driver: Driver) -> None:
    """The same name under another number, as on a board of another kind beside it."""
    (shipped,) = (profile for profile in driver.gpu.mig_profiles if profile.name == "3g.40gb")
    driver.stub("stub_remove", f"profile.{shipped.number}")
    driver.stub("stub_add", f"profile.{shipped.number}", "77 3 2 60 3 3 0 3 0 40448 3g.40gb")
    driver.stub("stub_add", "placements.77", "0:4 4:4")
    machine = msgspec.convert(driver.ask({"call": "discover", "arguments": {}})["value"], Machine)
    found = {
        gpu.uuid: next(p.profile_id for p in gpu.mig_profiles if p.name == "3g.40gb") for gpu in machine.gpus
    }
    assert found.pop(driver.gpu.uuid) == 77
    assert set(found.values()) == {shipped.profile_id}
    assert "value" in create(driver, 77, 0, 4)


@pytest.mark.parametrize(
    ("number", "told", "name"),
    [
        (15, "1g.10gb+me.all", "1g.10gb+me.all"),
        (13, "1g.10gb-me", "1g.10gb-me"),
        (17, "3g.40gb+gfx", "3g.40gb+gfx"),
        (16, "2g.20gb+odd.thing", "2g.20gb+odd.thing"),
    ],
)
def test_p30_profiles_with_any_suffix_are_told_by_their_names(
    driver: Driver, number: int, told: str, name: str
) -> None:
    driver.stub("stub_add", f"profile.{number}", f"88 1 1 16 1 1 0 1 0 9984 {told}")
    driver.stub("stub_add", "placements.88", "0:1")
    machine = msgspec.convert(driver.ask({"call": "discover", "arguments": {}})["value"], Machine)
    (gpu,) = (gpu for gpu in machine.gpus if gpu.uuid == driver.gpu.uuid)
    (profile,) = (profile for profile in gpu.mig_profiles if profile.profile_id == 88)
    assert (profile.name, profile.number) == (name, number)


def test_p29_a_driver_that_tells_no_names_has_them_computed(tmp_path: Path) -> None:
    for board in BOARDS[:2]:
        library = nvmlstub.build(tmp_path / f"{board}.so", without=("nvmlDeviceGetGpuInstanceProfileInfoV",))
        driver = Driver(tmp_path / board, library, machine_of(board))
        driver.begin()
        machine = msgspec.convert(driver.ask({"call": "discover", "arguments": {}})["value"], Machine)
        driver.end()
        assert [gpu.mig_profiles for gpu in machine.gpus] == [
            gpu.mig_profiles for gpu in machine_of(board).gpus
        ]


def test_p26_no_room_names_what_is_in_the_way(driver: Driver) -> None:
    holder = create(driver, 9, 4, 4)["value"]
    kind, cause = create(driver, 19, 6, 1)["error"]
    assert kind == "NoRoomError"
    assert f"taken by instance {holder} at 4:4" in cause


def test_p31_a_switch_that_is_not_carried_out_shows(driver: Driver) -> None:
    create(driver, 9, 0, 4)
    modes = driver.value("set_mig_mode", enabled=False)
    assert msgspec.convert(modes, MigModes) == MigModes(current=True, pending=False)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (pynvml.NVML_ERROR_IN_USE, "GpuBusyError"),
        (pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES, "NoRoomError"),
        (pynvml.NVML_ERROR_NOT_SUPPORTED, "NotSupportedError"),
        (pynvml.NVML_ERROR_GPU_IS_LOST, "GpuLostError"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "DriverUnavailableError"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "HardwareError"),
        (4711, "HardwareError"),
    ],
)
def test_what_codes_mean(driver: Driver, code: int, kind: str) -> None:
    driver.stub("stub_add", "error.nvmlDeviceCreateGpuInstanceWithPlacement", str(code))
    answer = create(driver, 9, 0, 4)
    driver.stub("stub_remove", "error.nvmlDeviceCreateGpuInstanceWithPlacement")
    assert answer["error"][0] == kind
    assert f"code {code}" in answer["error"][1] or kind == "NoRoomError"


def test_a_look_that_fails_is_not_an_empty_gpu(driver: Driver) -> None:
    create(driver, 9, 0, 4)
    for call in ("nvmlDeviceGetGpuInstances", "nvmlDeviceGetMigDeviceHandleByIndex"):
        driver.stub("stub_add", f"error.{call}", f"{pynvml.NVML_ERROR_UNKNOWN}@0")
        assert driver.call("gpu_instances")["error"][0] == "HardwareError"
    assert len(driver.instances()) == 1


def test_p27_the_capability_nodes_of_an_instance_and_no_others(driver: Driver) -> None:
    proc = driver.root / "proc"
    mig = proc / f"driver/nvidia/capabilities/gpu{driver.gpu.minor}/mig"
    (mig / "gi1/ci0").mkdir(parents=True)
    (mig / "config").write_text("DeviceFileMinor: 1\n")
    (mig / "gi1/access").write_text("DeviceFileMinor: 12\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
    (mig / "gi1/ci0/access").write_text("DeviceFileMinor: 13\nDeviceFileMode: 292\n")
    (proc / "devices").write_text(
        "Character devices:\n  1 mem\n236 nvidia-caps-imex-channels\n237 nvidia-caps\n"
    )
    found = driver.ask(
        {
            "call": "mig_nodes",
            "arguments": {
                "gpu": msgspec.to_builtins(driver.gpu),
                "gpu_instance_id": 1,
                "compute_instance_id": 0,
            },
        }
    )["value"]
    assert [(node["path"], node["major"], node["minor"]) for node in found] == [
        ("/dev/nvidia-caps/nvidia-cap12", 237, 12),
        ("/dev/nvidia-caps/nvidia-cap13", 237, 13),
    ]


def test_p57_device_numbers_are_read_anew_each_time(driver: Driver) -> None:
    proc = driver.root / "proc"
    access = proc / f"driver/nvidia/capabilities/gpu{driver.gpu.minor}/mig/gi2"
    (access / "ci0").mkdir(parents=True, exist_ok=True)
    request = {
        "call": "mig_nodes",
        "arguments": {
            "gpu": msgspec.to_builtins(driver.gpu),
            "gpu_instance_id": 2,
            "compute_instance_id": 0,
        },
    }
    for major, minor in ((237, 21), (509, 30)):
        (proc / "devices").write_text(f"{major} nvidia-caps\n")
        (access / "access").write_text(f"DeviceFileMinor: {minor}\n")
        (access / "ci0/access").write_text(f"DeviceFileMinor: {minor + 1}\n")
        found = driver.ask(request)["value"]
        assert [(node["major"], node["minor"]) for node in found] == [(major, minor), (major, minor + 1)]
    (access / "ci0/access").unlink()
    assert driver.ask(request)["error"][0] == "HardwareError"
    (proc / "devices").write_text("1 mem\n")
    assert driver.ask(request)["error"][0] == "DriverUnavailableError"


def test_p35_uuids_in_the_old_form_are_taken_as_they_are(driver: Driver) -> None:
    driver.stub("stub_add", "legacy", "1")
    instance = create(driver, 9, 0, 4)["value"]
    compute = driver.value("create_compute_instance", gpu_instance_id=instance)
    assert compute["uuid"] == f"MIG-{driver.gpu.uuid}/{instance}/0"
    assert driver.instances()[0].compute_instances[0].uuid == compute["uuid"]


def test_a_gpu_that_is_gone_is_looked_up_again(driver: Driver) -> None:
    stranger = GpuUuid("GPU-00000000-0000-0000-0000-000000000000")
    answer = driver.ask({"call": "gpu_instances", "arguments": {"uuid": stranger}})
    assert answer["error"][0] == "GpuLostError"
    driver.stub("stub_add", "error.*", str(pynvml.NVML_ERROR_GPU_IS_LOST))
    assert driver.call("gpu_instances")["error"][0] == "GpuLostError"
    driver.stub("stub_remove", "error.*")
    assert driver.instances() == ()


def test_memory_in_use_is_told_without_what_the_driver_keeps(driver: Driver) -> None:
    driver.stub("stub_add", "used", str(5 * 2**30))
    assert driver.value("used_memory_bytes") == 5 * 2**30
    driver.stub("stub_remove", "used")
    assert driver.value("used_memory_bytes") == 0
