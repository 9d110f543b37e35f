"""The simulated GPU as a state machine: MIG modes and instances, use, what outlives the process."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.base.errors import (
    DriverUnavailableError,
    GpuBusyError,
    GpuLostError,
    HardwareError,
    InvalidObjectError,
    NoRoomError,
    NotSupportedError,
)
from tangram.hardware.backend import GpuProcess, MigModes
from tangram.hardware.machines import load_machine
from tangram.hardware.simulated import Fault, SimulatedBackend
from tangram.hardware.simulated.store import FileStore
from tangram.model.gpu import Gpu, GpuUuid
from tangram.model.mig import MigPlacement

ON, OFF = MigModes(current=True, pending=True), MigModes(current=False, pending=False)


def backend(name: str = "h100-sxm5-80gb-x8") -> SimulatedBackend:
    return SimulatedBackend(load_machine(name), node_name="node-1")


def first(gpus: SimulatedBackend) -> GpuUuid:
    return gpus.discover().gpus[0].uuid


def with_mig() -> tuple[SimulatedBackend, GpuUuid]:
    gpus = backend()
    uuid = first(gpus)
    assert gpus.set_mig_mode(uuid, enabled=True) == ON
    return gpus, uuid


def create(gpus: SimulatedBackend, uuid: GpuUuid, profile: int, start: int, size: int) -> int:
    return gpus.create_gpu_instance(uuid, profile_id=profile, placement=MigPlacement(start, size))


class TestModes:
    def test_from_hopper_on_an_idle_gpu_switches_at_once(self) -> None:
        gpus, uuid = with_mig()
        assert gpus.discover().gpus[0].mig_mode == "enabled"
        assert gpus.set_mig_mode(uuid, enabled=False) == OFF
        assert gpus.discover().gpus[0].mig_mode == "disabled"

    def test_p19_an_ampere_waits_for_a_reset(self) -> None:
        gpus = backend("a100-sxm4-80gb-x8")
        uuid = first(gpus)
        assert gpus.set_mig_mode(uuid, enabled=True) == MigModes(current=False, pending=True)
        with pytest.raises(NotSupportedError):
            create(gpus, uuid, 9, 0, 4)
        gpus.reset(uuid)
        assert gpus.mig_modes(uuid) == ON

    def test_p19_a_gpu_in_a_virtual_machine_waits_for_a_reset(self) -> None:
        description = msgspec.structs.replace(load_machine("h100-sxm5-80gb-x8"), virtual_machine=True)
        gpus = SimulatedBackend(description, node_name="node-1")
        uuid = first(gpus)
        assert gpus.set_mig_mode(uuid, enabled=True) == MigModes(current=False, pending=True)

    def test_p31_a_gpu_in_use_accepts_the_switch_and_does_not_carry_it_out(self) -> None:
        gpus = backend()
        uuid = first(gpus)
        gpus.set_processes(uuid, [GpuProcess(pid=17)])
        assert gpus.set_mig_mode(uuid, enabled=True) == MigModes(current=False, pending=True)
        with pytest.raises(GpuBusyError, match="pid 17"):
            gpus.reset(uuid)
        gpus.set_processes(uuid, [])
        assert gpus.set_mig_mode(uuid, enabled=True) == ON

    def test_switching_off_under_instances_changes_nothing(self) -> None:
        gpus, uuid = with_mig()
        create(gpus, uuid, 9, 0, 4)
        assert gpus.set_mig_mode(uuid, enabled=False) == MigModes(current=True, pending=False)
        assert len(gpus.gpu_instances(uuid)) == 1

    def test_p36_a_board_without_mig(self) -> None:
        gpus = backend("t4-x4")
        uuid = first(gpus)
        with pytest.raises(NotSupportedError):
            gpus.mig_modes(uuid)
        with pytest.raises(NotSupportedError):
            gpus.set_mig_mode(uuid, enabled=True)
        assert gpus.gpu_instances(uuid) == ()

    def test_a_description_that_says_another_mode_is_a_switch_by_somebody_else(self, tmp_path: Path) -> None:
        file = tmp_path / "machine.yaml"
        text = Path("driver/tangram/hardware/machines/h100-sxm5-80gb-x8.yaml")
        content = (Path(__file__).parents[3] / text).read_text(encoding="utf-8")
        file.write_text(content.replace("migMode: disabled", "migMode: enabled"))
        gpus = SimulatedBackend.load(str(file), node_name="node-1")
        uuid = first(gpus)
        create(gpus, uuid, 9, 0, 4)
        file.write_text(content)
        assert gpus.discover().gpus[0].mig_mode == "disabled"
        assert (gpus.mig_modes(uuid), gpus.gpu_instances(uuid)) == (OFF, ())


class TestInstances:
    def test_p25_three_and_three_leave_a_compute_slice_and_no_memory(self) -> None:
        gpus, uuid = with_mig()
        create(gpus, uuid, 9, 0, 4)
        create(gpus, uuid, 9, 4, 4)
        with pytest.raises(NoRoomError):
            create(gpus, uuid, 19, 6, 1)

    def test_p25_four_and_three_times_one_fill_a_gpu(self) -> None:
        gpus, uuid = with_mig()
        create(gpus, uuid, 5, 0, 4)
        for start in (4, 5, 6):
            create(gpus, uuid, 19, start, 1)
        assert len(gpus.gpu_instances(uuid)) == 4

    def test_the_number_of_instances_of_a_profile_is_limited(self) -> None:
        gpus, uuid = with_mig()
        create(gpus, uuid, 20, 0, 1)
        with pytest.raises(NoRoomError):
            create(gpus, uuid, 20, 1, 1)

    def test_p26_no_room_names_what_is_in_the_way(self) -> None:
        gpus, uuid = with_mig()
        holder = create(gpus, uuid, 9, 4, 4)
        with pytest.raises(NoRoomError, match=rf"taken by instance {holder} at 4:4"):
            create(gpus, uuid, 19, 6, 1)

    def test_p17_every_creation_has_a_new_uuid_and_numbers_are_used_again(self) -> None:
        gpus, uuid = with_mig()
        seen = set()
        for _ in range(3):
            instance = create(gpus, uuid, 9, 0, 4)
            compute = gpus.create_compute_instance(uuid, gpu_instance_id=instance)
            seen.add((instance, compute.compute_instance_id, compute.uuid))
            gpus.destroy_compute_instance(
                uuid, gpu_instance_id=instance, compute_instance_id=compute.compute_instance_id
            )
            gpus.destroy_gpu_instance(uuid, gpu_instance_id=instance)
        assert len({instance for instance, _, _ in seen}) == 1
        assert len({mig for _, _, mig in seen}) == 3
        assert all(mig.startswith("MIG-") and mig[4:] not in uuid for _, _, mig in seen)

    def test_what_is_not_legal_is_refused(self) -> None:
        gpus, uuid = with_mig()
        for profile, start, size in ((9, 2, 4), (99, 0, 1)):
            with pytest.raises(HardwareError, match="INVALID_ARGUMENT"):
                create(gpus, uuid, profile, start, size)
        with pytest.raises(HardwareError, match="NOT_FOUND"):
            gpus.create_compute_instance(uuid, gpu_instance_id=3)

    def test_a_second_compute_instance_has_no_room(self) -> None:
        gpus, uuid = with_mig()
        instance = create(gpus, uuid, 9, 0, 4)
        gpus.create_compute_instance(uuid, gpu_instance_id=instance)
        with pytest.raises(NoRoomError):
            gpus.create_compute_instance(uuid, gpu_instance_id=instance)

    def test_p18_destroying_in_use_says_who_holds_it(self) -> None:
        gpus, uuid = with_mig()
        instance = create(gpus, uuid, 9, 0, 4)
        compute = gpus.create_compute_instance(uuid, gpu_instance_id=instance).compute_instance_id
        gpus.set_processes(uuid, [GpuProcess(pid=41, gpu_instance_id=instance, compute_instance_id=compute)])
        with pytest.raises(GpuBusyError, match="pid 41"):
            gpus.destroy_compute_instance(uuid, gpu_instance_id=instance, compute_instance_id=compute)
        gpus.set_processes(uuid, [])
        with pytest.raises(GpuBusyError, match="compute instance"):
            gpus.destroy_gpu_instance(uuid, gpu_instance_id=instance)
        gpus.destroy_compute_instance(uuid, gpu_instance_id=instance, compute_instance_id=compute)
        gpus.destroy_gpu_instance(uuid, gpu_instance_id=instance)
        assert gpus.gpu_instances(uuid) == ()

    def test_destroying_what_is_gone_is_no_error(self) -> None:
        gpus, uuid = with_mig()
        gpus.destroy_gpu_instance(uuid, gpu_instance_id=3)
        gpus.destroy_compute_instance(uuid, gpu_instance_id=3, compute_instance_id=0)
        gpus.set_mig_mode(uuid, enabled=False)
        gpus.destroy_gpu_instance(uuid, gpu_instance_id=3)

    def test_p28_numbers_of_profiles_are_the_gpus_own(self) -> None:
        h100, b200 = backend().discover().gpus[0], backend("b200-sxm6-180gb-x8").discover().gpus[0]
        assert {p.name for p in h100.mig_profiles} & {"3g.40gb"}
        assert {p.name for p in b200.mig_profiles} & {"3g.90gb"}
        for gpu in (h100, b200):
            assert len({p.profile_id for p in gpu.mig_profiles}) == len(gpu.mig_profiles)

    def test_a_lost_gpu_does_nothing(self) -> None:
        gpus, uuid = with_mig()
        gpus.lose(uuid)
        with pytest.raises(GpuLostError):
            create(gpus, uuid, 9, 0, 4)
        gpus.recover(uuid)
        create(gpus, uuid, 9, 0, 4)


BOARDS = ["a100-sxm4-40gb-x8", "h100-nvl-94gb-x8", "b200-sxm6-180gb-x8"]
ATTEMPTS = st.lists(st.tuples(st.booleans(), st.integers(0, 10**6)), max_size=24)


@settings(max_examples=60)
@given(name=st.sampled_from(BOARDS), attempts=ATTEMPTS)
def test_p25_no_sequence_overfills_a_gpu(name: str, attempts: list[tuple[bool, int]]) -> None:
    gpus = backend(name)
    gpu = gpus.discover().gpus[0]
    gpus.set_mig_mode(gpu.uuid, enabled=True)
    if gpus.mig_modes(gpu.uuid) != ON:
        gpus.reset(gpu.uuid)
    places = [(profile, place) for profile in gpu.mig_profiles for place in profile.placements]
    for creating, number in attempts:
        there = gpus.gpu_instances(gpu.uuid)
        if creating or not there:
            profile, place = places[number % len(places)]
            try:
                gpus.create_gpu_instance(gpu.uuid, profile_id=profile.profile_id, placement=place)
            except NoRoomError:
                assert gpus.gpu_instances(gpu.uuid) == there
        else:
            gpus.destroy_gpu_instance(gpu.uuid, gpu_instance_id=there[number % len(there)].gpu_instance_id)
        check_capacity(gpu, gpus)


def check_capacity(gpu: Gpu, gpus: SimulatedBackend) -> None:
    there = gpus.gpu_instances(gpu.uuid)
    profiles = {profile.profile_id: profile for profile in gpu.mig_profiles}
    masks = [instance.placement.mask for instance in there]
    assert sum(masks) < 1 << gpu.memory_slices
    assert sum(masks) == sum(dict.fromkeys(masks, 1))
    assert sum(profiles[i.profile_id].compute_slices for i in there) <= gpu.compute_slices
    assert len({i.gpu_instance_id for i in there}) == len(there)
    assert (gpu.memory_slices, gpu.compute_slices) == (8, 7)


class TestUse:
    def test_compute_mode(self) -> None:
        gpus = backend()
        uuid = first(gpus)
        assert gpus.compute_mode(uuid) == "default"
        gpus.set_compute_mode(uuid, "exclusive_process")
        assert gpus.compute_mode(uuid) == "exclusive_process"
        gpus.set_compute_mode(uuid, "default")
        gpus.set_mig_mode(uuid, enabled=True)
        with pytest.raises(NotSupportedError):
            gpus.set_compute_mode(uuid, "exclusive_process")

    def test_processes_and_memory(self) -> None:
        gpus = backend()
        uuid = first(gpus)
        assert (gpus.processes(uuid), gpus.used_memory_bytes(uuid)) == ((), 0)
        two = [GpuProcess(pid=9, memory_bytes=5), GpuProcess(pid=3)]
        gpus.set_processes(uuid, two)
        gpus.set_used_memory(uuid, 2**30)
        assert gpus.processes(uuid) == (two[1], two[0])
        assert gpus.used_memory_bytes(uuid) == 2**30

    def test_p53_memory_that_is_not_the_gpus_own_is_not_told(self) -> None:
        gpus = backend("gb10")
        assert gpus.used_memory_bytes(first(gpus)) is None

    def test_p27_an_instance_has_two_capability_nodes_of_its_own(self) -> None:
        gpus = backend()
        seen: set[str] = set()
        for gpu in gpus.discover().gpus:
            for instance in range(15):
                nodes = gpus.mig_nodes(gpu, gpu_instance_id=instance, compute_instance_id=0)
                paths = {node.path for node in nodes}
                assert len(paths) == 2
                assert not seen & paths
                seen |= paths
        assert not seen & {"/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap2"}

    def test_a_minor_number_may_change(self) -> None:
        gpus = backend()
        gpu = gpus.discover().gpus[0]
        gpus.renumber(gpu.uuid, 12)
        (node,) = gpus.device_nodes(gpus.discover().gpus[0])
        assert node.path == "/dev/nvidia12"


class TestFaults:
    def test_the_third_creation_fails(self) -> None:
        gpus, uuid = with_mig()
        gpus.fail(Fault(call="create_gpu_instance", error="INSUFFICIENT_RESOURCES", after=2))
        create(gpus, uuid, 19, 0, 1)
        create(gpus, uuid, 19, 1, 1)
        with pytest.raises(NoRoomError, match="planned fault"):
            create(gpus, uuid, 19, 2, 1)
        create(gpus, uuid, 19, 2, 1)

    def test_always_and_for_one_gpu_alone(self) -> None:
        gpus = backend()
        one, other = (gpu for gpu in gpus.discover().gpus[:2])
        assert one.pci_bus_id
        gpus.fail(Fault(call="*", error="GPU_IS_LOST", target=one.pci_bus_id, times="always"))
        for _ in range(3):
            with pytest.raises(GpuLostError):
                gpus.probe(one.uuid)
            with pytest.raises(GpuLostError):
                gpus.gpu_instances(one.uuid)
            gpus.probe(other.uuid)

    def test_after_the_fact(self) -> None:
        gpus, uuid = with_mig()
        gpus.fail(Fault(call="create_gpu_instance", error="UNKNOWN", effect=True))
        with pytest.raises(HardwareError):
            create(gpus, uuid, 9, 0, 4)
        assert len(gpus.gpu_instances(uuid)) == 1

    def test_before_the_fact(self) -> None:
        gpus, uuid = with_mig()
        gpus.fail(Fault(call="create_gpu_instance", error="NO_PERMISSION"))
        with pytest.raises(HardwareError, match="NO_PERMISSION"):
            create(gpus, uuid, 9, 0, 4)
        assert gpus.gpu_instances(uuid) == ()

    @pytest.mark.parametrize(
        ("changes", "field"),
        [({"call": "create_instance"}, "call"), ({"error": "NO_ROOM"}, "error"), ({"times": 0}, "times")],
    )
    def test_one_that_could_never_strike_is_refused(self, changes: dict[str, Any], field: str) -> None:
        wrong = msgspec.structs.replace(Fault(call="create_gpu_instance", error="UNKNOWN"), **changes)
        with pytest.raises(InvalidObjectError, match=f"fault: {field}: "):
            backend().fail(wrong)

    def test_the_plan_of_a_description_is_read_again_and_keeps_its_counts(self, tmp_path: Path) -> None:
        file = tmp_path / "machine.yaml"
        path = Path(__file__).parents[3] / "driver/tangram/hardware/machines/t4-x4.yaml"
        content = path.read_text(encoding="utf-8")
        file.write_text(f"{content}faults:\n  - {{call: probe, error: GPU_IS_LOST, after: 1, times: 2}}\n")
        gpus = SimulatedBackend.load(str(file), node_name="node-1")
        uuid = first(gpus)
        gpus.probe(uuid)
        with pytest.raises(GpuLostError):
            gpus.probe(uuid)
        file.write_text(file.read_text() + "  - {call: compute_mode, error: UNKNOWN}\n")
        gpus.discover()
        with pytest.raises(GpuLostError):
            gpus.probe(uuid)
        gpus.probe(uuid)
        with pytest.raises(HardwareError):
            gpus.compute_mode(uuid)
        file.write_text(content)
        gpus.discover()
        gpus.compute_mode(uuid)

    def test_latencies_pass_by_the_given_clock(self) -> None:
        passed: list[float] = []
        gpus = SimulatedBackend(
            load_machine("t4-x4"), node_name="n", latencies_s={"probe": 1.5}, pause=passed.append
        )
        gpus.probe(first(gpus))
        assert passed == [1.5]


_BUSY = """
import sys
import os
import subprocess
import sys
from pathlib import Path
from tangram.hardware.simulated import SimulatedBackend
from tangram.model.mig import MigPlacement
directory, uuid, start = sys.argv[1:]
gpus = SimulatedBackend.load("h100-sxm5-80gb-x8", node_name="node-1", state_directory=Path(directory))
for there in gpus.gpu_instances(uuid):
    if there.placement.start == int(start):
        gpus.destroy_gpu_instance(uuid, gpu_instance_id=there.gpu_instance_id)
while True:
    made = gpus.create_gpu_instance(uuid, profile_id=19, placement=MigPlacement(int(start), 1))
    gpus.destroy_gpu_instance(uuid, gpu_instance_id=made)
    sys.stdout.write(".")
    sys.stdout.flush()
"""


class TestFiles:
    def make(self, directory: Path, *, name: str = "h100-sxm5-80gb-x8", boot: str = "a") -> SimulatedBackend:
        store = FileStore(directory, boot_id=boot)
        return SimulatedBackend(load_machine(name), node_name="node-1", store=store)

    def test_instances_outlive_the_process_and_are_seen_by_others(self, tmp_path: Path) -> None:
        gpus = self.make(tmp_path)
        uuid = first(gpus)
        gpus.set_mig_mode(uuid, enabled=True)
        create(gpus, uuid, 9, 0, 4)
        others = self.make(tmp_path)
        assert others.discover().gpus[0].mig_mode == "enabled"
        assert others.gpu_instances(uuid) == gpus.gpu_instances(uuid) != ()
        others.lose(uuid)
        assert gpus.discover().failures == {uuid: "GPU is lost"}

    def test_p22_what_somebody_else_makes_or_destroys_is_seen(self, tmp_path: Path) -> None:
        gpus, others = self.make(tmp_path), self.make(tmp_path)
        uuid = first(gpus)
        others.set_mig_mode(uuid, enabled=True)
        instance = create(others, uuid, 9, 0, 4)
        assert [there.gpu_instance_id for there in gpus.gpu_instances(uuid)] == [instance]
        others.destroy_gpu_instance(uuid, gpu_instance_id=instance)
        assert gpus.gpu_instances(uuid) == ()

    def test_processes_killed_at_any_moment_leave_a_state(self, tmp_path: Path) -> None:
        """Three at a time create and destroy on one GPU, and are killed after some calls."""
        gpus = SimulatedBackend.load("h100-sxm5-80gb-x8", node_name="node-1", state_directory=tmp_path)
        uuid = first(gpus)
        gpus.set_mig_mode(uuid, enabled=True)
        for _ in range(3):
            busy = [
                subprocess.Popen(
                    [sys.executable, "-c", _BUSY, str(tmp_path), uuid, str(start)],
                    stdout=subprocess.PIPE,
                    env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
                )
                for start in range(3)
            ]
            for process in busy:
                assert process.stdout
                assert len(process.stdout.read(5)) == 5
            for process in busy:
                process.kill()
                assert process.stdout
                process.stdout.close()
                process.wait(timeout=60)
            there = gpus.gpu_instances(uuid)
            assert gpus.mig_modes(uuid) == ON
            assert {instance.placement.start for instance in there} <= {0, 1, 2}
            again = SimulatedBackend.load("h100-sxm5-80gb-x8", node_name="node-1", state_directory=tmp_path)
            assert again.gpu_instances(uuid) == there
            assert not list(tmp_path.glob(".*.tmp"))

    def test_p32_a_reboot_ends_instances_and_modes(self, tmp_path: Path) -> None:
        gpus = self.make(tmp_path)
        uuid = first(gpus)
        gpus.set_mig_mode(uuid, enabled=True)
        compute = gpus.create_compute_instance(uuid, gpu_instance_id=create(gpus, uuid, 9, 0, 4))
        gpus.set_processes(uuid, [GpuProcess(pid=4)])
        gpus = self.make(tmp_path, boot="b")
        assert (gpus.mig_modes(uuid), gpus.gpu_instances(uuid), gpus.processes(uuid)) == (OFF, (), ())
        gpus.set_mig_mode(uuid, enabled=True)
        again = gpus.create_compute_instance(uuid, gpu_instance_id=create(gpus, uuid, 9, 0, 4))
        assert again.uuid != compute.uuid

    def test_a_pending_mode_of_an_ampere_is_in_force_after_a_reboot(self, tmp_path: Path) -> None:
        gpus = self.make(tmp_path, name="a100-sxm4-80gb-x8")
        uuid = first(gpus)
        gpus.set_mig_mode(uuid, enabled=True)
        gpus = self.make(tmp_path, name="a100-sxm4-80gb-x8", boot="b")
        assert gpus.mig_modes(uuid) == ON
        gpus = self.make(tmp_path, name="a100-sxm4-80gb-x8", boot="c")
        assert gpus.mig_modes(uuid) == ON

    @pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"boot_id": 1}', b"\xff"])
    def test_a_file_that_is_no_state_counts_as_none(self, tmp_path: Path, content: bytes) -> None:
        uuid = first(self.make(tmp_path))
        (tmp_path / f"{uuid}.json").write_bytes(content)
        assert self.make(tmp_path).mig_modes(uuid) == OFF

    def test_a_directory_that_cannot_be_used_says_so(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(DriverUnavailableError, match="cannot be opened"):
            self.make(tmp_path / "file").discover()
