"""NvmlBackend over pynvml's own wrappers and a library in Python."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.hardware.fake_nvml import ERROR_CODES, FakeNvml, installed, make_sysfs

from tangram.base.errors import DriverUnavailableError, GpuLostError, HardwareError
from tangram.hardware.machines import load_machine, shipped_machines
from tangram.hardware.nvml import NvmlBackend
from tangram.hardware.simulated import SimulatedBackend, describe_machine
from tangram.model.gpu import Gpu, GpuUuid, Machine, NvLink

DRIVER_CODES = {
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
}
UNKNOWN_CODE = 4711


def shipped(name: str) -> Machine:
    return describe_machine(load_machine(name), node_name="node-1")


def discover(fake: FakeNvml, sysfs_root: Path = Path("/nonexistent")) -> Machine:
    with installed(fake):
        backend = NvmlBackend(driver_root=Path("/"), sysfs_root=sysfs_root)
        backend.open()
        return backend.discover()


def one_gpu(**changes: Any) -> Machine:
    gpu = replace(shipped("t4-x4").gpus[0], index=0, minor=0, pcie_root=None, numa_node=None, **changes)
    return Machine(gpus=(gpu,), driver_version="580.1.2", cuda_driver_version="13.0")


@pytest.fixture
def fake() -> Iterator[FakeNvml]:
    with installed(FakeNvml(shipped("dgx-1v"))) as library:
        yield library


@pytest.mark.parametrize("name", shipped_machines())
def test_discovers_exactly_what_the_simulated_back_end_does(name: str, tmp_path: Path) -> None:
    simulated = SimulatedBackend(load_machine(name), node_name="node-1").discover()
    sysfs = make_sysfs(tmp_path / "sys", simulated)
    assert discover(FakeNvml(simulated), sysfs) == simulated
    assert simulated.gpus
    assert all(gpu.pcie_root for gpu in simulated.gpus)


def test_p53_a_fabric_clique_and_unified_memory_survive() -> None:
    machine = one_gpu(
        fabric_clique="8a0c1d6e-0f6c-4a1b-9d2e-5c3b7f1e2a90.7",
        memory_bytes=None,
        multiprocessors=None,
        pci_bus_id=None,
        mig_mode="enabled",
    )
    assert discover(FakeNvml(machine)) == machine


def test_p36_a_vgpu_is_a_gpu_without_mig() -> None:
    machine = one_gpu(virtual=True, mig_mode="unsupported")
    assert discover(FakeNvml(machine)) == machine


@pytest.mark.parametrize("code", [*ERROR_CODES, UNKNOWN_CODE])
def test_p55_a_driver_that_cannot_be_opened_is_a_state(code: int) -> None:
    library = FakeNvml(shipped("t4-x4"))
    library.fail_function["nvmlInitWithFlags"] = code
    with installed(library):
        backend = NvmlBackend(driver_root=Path("/"))
        with pytest.raises(DriverUnavailableError) as raised:
            backend.open()
        assert raised.value.next_step
        del library.fail_function["nvmlInitWithFlags"]
        backend.open()
        assert len(backend.discover().gpus) == 4


def test_opening_twice_connects_once(fake: FakeNvml) -> None:
    backend = NvmlBackend(driver_root=Path("/"))
    backend.open()
    backend.open()
    assert fake.initialized == 1
    backend.close()
    backend.close()
    assert fake.initialized == 0


def test_a_driver_that_went_away_is_connected_anew(fake: FakeNvml) -> None:
    backend = NvmlBackend(driver_root=Path("/"))
    backend.open()
    fake.fail_function["nvmlDeviceGetCount_v2"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    with pytest.raises(DriverUnavailableError):
        backend.discover()
    assert fake.initialized == 0
    fake.fail_function.clear()
    backend.open()
    assert fake.initialized == 1
    assert len(backend.discover().gpus) == 8


def test_discovery_before_opening_says_so(fake: FakeNvml) -> None:
    with pytest.raises(DriverUnavailableError):
        NvmlBackend(driver_root=Path("/")).discover()


def test_a_failing_shutdown_is_no_error(fake: FakeNvml) -> None:
    backend = NvmlBackend(driver_root=Path("/"))
    backend.open()
    fake.fail_function["nvmlShutdown"] = pynvml.NVML_ERROR_UNKNOWN
    backend.close()


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED])
def test_p49_one_lost_gpu_costs_that_gpu_only(fake: FakeNvml, code: int) -> None:
    fake.fail_gpu[3] = code
    machine = discover(fake)
    assert len(machine.gpus) == 7
    assert 3 not in {gpu.index for gpu in machine.gpus}
    assert list(machine.failures) == ["index 3"]


def test_a_gpu_lost_after_its_uuid_was_read_is_named_by_it(fake: FakeNvml) -> None:
    fake.fail_function["nvmlDeviceGetMinorNumber"] = pynvml.NVML_ERROR_UNKNOWN
    machine = discover(fake)
    assert machine.gpus == ()
    assert set(machine.failures) == {gpu.uuid for gpu in fake.gpus}


ATTRIBUTES: dict[str, dict[str, Any]] = {
    "nvmlDeviceGetName": {"product_name": "unknown"},
    "nvmlDeviceGetBrand": {"brand": "unknown"},
    "nvmlDeviceGetArchitecture": {"architecture": "unknown"},
    "nvmlDeviceGetCudaComputeCapability": {"compute_capability": (0, 0), "multiprocessors": None},
    "nvmlDeviceGetMemoryInfo": {"memory_bytes": None},
    "nvmlDeviceGetNumGpuCores": {"multiprocessors": None},
    "nvmlDeviceGetPciInfo_v3": {"pci_bus_id": None, "pcie_root": None, "numa_node": None},
    "nvmlDeviceGetMigMode": {"mig_mode": "unsupported", "mig_profiles": ()},
    "nvmlDeviceGetGpuInstancePossiblePlacements_v2": {"mig_profiles": ()},
    "nvmlDeviceGetVirtualizationMode": {"virtual": False},
    "nvmlDeviceGetNvLinkState": {"nvlinks": ()},
    "nvmlDeviceGetGpuFabricInfoV": {"fabric_clique": None},
}


@pytest.mark.parametrize("function", ATTRIBUTES)
@pytest.mark.parametrize("how", ["NOT_SUPPORTED", "INVALID_ARGUMENT", "missing symbol"])
def test_p54_what_nvml_refuses_costs_that_attribute(function: str, how: str, tmp_path: Path) -> None:
    whole = shipped("h100-sxm5-80gb-x8")
    whole = replace(
        whole,
        gpus=tuple(
            replace(gpu, fabric_clique="8a0c1d6e-0f6c-4a1b-9d2e-5c3b7f1e2a90.1", virtual=True)
            for gpu in whole.gpus
        ),
    )
    library = FakeNvml(whole)
    if how == "missing symbol":
        library.missing.add(function)
    else:
        library.fail_function[function] = getattr(pynvml, f"NVML_ERROR_{how}")
    machine = discover(library, make_sysfs(tmp_path / "sys", whole))
    changes: dict[str, Any] = ATTRIBUTES[function]
    assert machine == replace(whole, gpus=tuple(replace(gpu, **changes) for gpu in whole.gpus))


@pytest.mark.parametrize("function", ["nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion_v2"])
def test_an_unknown_version_costs_the_version(fake: FakeNvml, function: str) -> None:
    fake.missing.add(function)
    machine = discover(fake)
    assert len(machine.gpus) == 8
    assert "" in (machine.driver_version, machine.cuda_driver_version)


def test_a_mig_mode_that_cannot_be_read_costs_the_gpu(fake: FakeNvml) -> None:
    # In MIG mode the GPU must not be published whole, so a guess would be worse than nothing.
    fake.fail_function["nvmlDeviceGetMigMode"] = pynvml.NVML_ERROR_UNKNOWN
    machine = discover(fake)
    assert machine.gpus == ()
    assert len(machine.failures) == 8


def test_unknown_enum_values_cost_the_attribute(monkeypatch: pytest.MonkeyPatch, fake: FakeNvml) -> None:
    def number(value: int) -> Any:
        def answer(self: FakeNvml, handle: Any, *references: Any) -> None:
            for reference in references:
                reference._obj.value = value

        return answer

    monkeypatch.setattr(FakeNvml, "_nvmlDeviceGetBrand", number(4000))
    monkeypatch.setattr(FakeNvml, "_nvmlDeviceGetArchitecture", number(4000))
    monkeypatch.setattr(FakeNvml, "_nvmlDeviceGetCudaComputeCapability", number(99))
    machine = discover(fake)
    assert {(gpu.brand, gpu.architecture, gpu.multiprocessors) for gpu in machine.gpus} == {
        ("unknown", "unknown", None)
    }
    monkeypatch.setattr(FakeNvml, "_nvmlDeviceGetMigMode", number(7))
    assert "unknown MIG mode 7" in next(iter(discover(fake).failures.values()))


@pytest.mark.parametrize("function", ["GetName", "GetUUID", "GetPciInfo_v3"])
def test_text_that_is_no_utf8_is_no_crash(
    monkeypatch: pytest.MonkeyPatch, fake: FakeNvml, function: str
) -> None:
    def garbage(self: FakeNvml, handle: Any, target: Any, *rest: Any) -> None:
        if function == "GetPciInfo_v3":
            target._obj.busId = b"\xff\xfe\xfd"
        else:
            target.value = b"\xff\xfe\xfd"

    monkeypatch.setattr(FakeNvml, f"_nvmlDevice{function}", garbage)
    machine = discover(fake)
    assert len(machine.gpus) + len(machine.failures) == 8
    if function == "GetUUID":
        assert machine.gpus == ()


def test_a_uuid_that_is_none_or_taken_costs_the_gpu(fake: FakeNvml) -> None:
    fake.gpus[2] = replace(fake.gpus[2], uuid=GpuUuid("N/A"))
    fake.gpus[5] = replace(fake.gpus[5], uuid=fake.gpus[4].uuid)
    machine = discover(fake)
    assert set(machine.failures) == {"index 2", "index 5"}
    assert len(machine.gpus) == 6


def test_boards_that_only_display_are_left_out(fake: FakeNvml) -> None:
    fake.gpus[7] = replace(fake.gpus[7], product_name="NVIDIA DGX Display")
    machine = discover(fake)
    assert len(machine.gpus) == 7
    assert machine.failures == {}


def test_p54_an_integrated_gpu_has_no_bus_id(fake: FakeNvml) -> None:
    machine = one_gpu(pci_bus_id="0000:00:00.0", product_name="Orin (nvgpu)")
    assert discover(FakeNvml(machine)).gpus[0].pci_bus_id is None


class TestNvLink:
    """P65-P67: where links end."""

    @pytest.mark.parametrize("name", ["dgx-1v", "h100-sxm5-80gb-x8"])
    def test_types_unknown_to_the_driver_are_read_from_the_addresses(self, name: str) -> None:
        machine = shipped(name)
        library = FakeNvml(machine)
        library.remote_types_known = False
        links = {gpu.uuid: gpu.nvlinks for gpu in discover(library).gpus}
        assert links == {gpu.uuid: gpu.nvlinks for gpu in machine.gpus}
        library.missing.add("nvmlDeviceGetNvLinkRemoteDeviceType")
        assert links == {gpu.uuid: gpu.nvlinks for gpu in discover(library).gpus}

    def test_an_end_that_nothing_is_known_of_is_no_link(self) -> None:
        library = FakeNvml(shipped("dgx-1v"))
        library.missing |= {"nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo_v2"}
        assert {gpu.nvlinks for gpu in discover(library).gpus} == {()}

    def test_links_to_a_cpu_do_not_count(self, monkeypatch: pytest.MonkeyPatch, fake: FakeNvml) -> None:
        def npu(self: FakeNvml, handle: Any, link: int, reference: Any) -> None:
            reference._obj.value = pynvml.NVML_NVLINK_DEVICE_TYPE_IBMNPU

        monkeypatch.setattr(FakeNvml, "_nvmlDeviceGetNvLinkRemoteDeviceType", npu)
        assert {gpu.nvlinks for gpu in discover(fake).gpus} == {()}

    def test_links_that_are_down_do_not_count(self, monkeypatch: pytest.MonkeyPatch, fake: FakeNvml) -> None:
        def third_down(self: FakeNvml, handle: Any, link: int, reference: Any) -> None:
            reference._obj.value = int(link < 6 and link != 3)

        monkeypatch.setattr(FakeNvml, "_nvmlDeviceGetNvLinkState", third_down)
        assert {len(gpu.nvlinks) for gpu in discover(fake).gpus} == {5}

    def test_a_gpu_outside_this_machine_is_no_peer(self) -> None:
        machine = one_gpu(nvlinks=(NvLink(peer_bus_id="0000:99:00.0"),))
        found = discover(FakeNvml(machine))
        assert found == machine
        assert found.links().peers(0) == ()


class TestProbe:
    def probe(self, library: FakeNvml, gpu: Gpu) -> None:
        with installed(library):
            backend = NvmlBackend(driver_root=Path("/"))
            backend.open()
            backend.probe(gpu.uuid)

    def test_a_gpu_that_answers(self, fake: FakeNvml) -> None:
        self.probe(fake, fake.gpus[0])

    @pytest.mark.parametrize(
        "refusal", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND]
    )
    def test_a_refusal_is_an_answer(self, fake: FakeNvml, refusal: int) -> None:
        fake.fail_function["nvmlDeviceGetMemoryInfo"] = refusal
        self.probe(fake, fake.gpus[0])

    @pytest.mark.parametrize(
        "code",
        [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_TIMEOUT, UNKNOWN_CODE],
    )
    def test_a_gpu_that_does_not(self, fake: FakeNvml, code: int) -> None:
        fake.fail_gpu[0] = code
        with pytest.raises(GpuLostError) as raised:
            self.probe(fake, fake.gpus[0])
        assert raised.value.uuid == fake.gpus[0].uuid
        self.probe(fake, fake.gpus[1])

    def test_a_gpu_that_is_not_there(self, fake: FakeNvml) -> None:
        stranger = replace(fake.gpus[0], uuid=GpuUuid("GPU-00000000-0000-0000-0000-000000000000"))
        with pytest.raises(GpuLostError):
            self.probe(fake, stranger)

    def test_a_driver_that_is_gone(self, fake: FakeNvml) -> None:
        fake.fail_function["nvmlDeviceGetHandleByUUID"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
        with pytest.raises(DriverUnavailableError):
            self.probe(fake, fake.gpus[0])


ONE_ANSWER = [
    *({next(iter(changes))} for changes in ATTRIBUTES.values()),
    {"compute_capability", "multiprocessors"},
    {"mig_mode", "mig_profiles"},
]
"""Fields that one call gives."""


@settings(max_examples=150)
@given(data=st.data(), name=st.sampled_from(shipped_machines()))
def test_p62_any_one_failing_call_costs_one_attribute_or_one_gpu(data: st.DataObject, name: str) -> None:
    whole = shipped(name)
    whole = replace(whole, gpus=tuple(replace(gpu, pcie_root=None, numa_node=None) for gpu in whole.gpus))
    library = FakeNvml(whole)
    discover(library)
    calls, library = library.calls, FakeNvml(whole)
    number = data.draw(st.integers(min_value=0, max_value=len(calls) - 1))
    code = data.draw(st.sampled_from([*ERROR_CODES, UNKNOWN_CODE, -1, 2**31 - 1]))
    library.fail_nth[number] = code
    try:
        machine = discover(library)
    except DriverUnavailableError:
        # Only what says that the whole driver is gone, and the two calls without which there is nothing.
        assert code in DRIVER_CODES or calls[number] in ("nvmlInitWithFlags", "nvmlDeviceGetCount_v2")
        return
    assert code not in DRIVER_CODES
    assert len(machine.gpus) + len(machine.failures) == len(whole.gpus)
    by_uuid = {gpu.uuid: gpu for gpu in whole.gpus}
    differing = [
        {field for field in gpu.__slots__ if getattr(gpu, field) != getattr(by_uuid[gpu.uuid], field)}
        for gpu in machine.gpus
    ]
    costs = [fields for fields in differing if fields]
    assert len(costs) + len(machine.failures) <= 1
    assert all(fields in ONE_ANSWER for fields in costs)


@settings(max_examples=100)
@given(
    failures=st.dictionaries(
        st.integers(min_value=0, max_value=400), st.sampled_from([*ERROR_CODES, UNKNOWN_CODE]), max_size=40
    )
)
def test_p62_many_failing_calls_raise_hardware_errors_only(failures: dict[int, int]) -> None:
    library = FakeNvml(shipped("dgx-1v"))
    library.fail_nth = failures
    try:
        machine = discover(library)
    except HardwareError:
        return
    assert len(machine.gpus) + len(machine.failures) == 8
