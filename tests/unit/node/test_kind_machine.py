"""Random claims of all kinds, kubelet calls, restarts, reboots and hands of others: what must always hold."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.unit.node.kinds import KindsNode, assert_consistent, claim, make_node
from tests.unit.node.support import Claims, uid

from tangram.base.errors import TangramError
from tangram.hardware.machines.faultplan import Call, Fault
from tangram.model.mig import MigPlacement
from tangram.model.shares import Share, excess, total
from tangram.node.held import HeldClaim, MigStep
from tangram.node.reconcile import CONFIRM_AFTER_S
from tangram.testing.clock import FakeClock

NUMBERS = st.integers(min_value=1, max_value=5)
DEVICES = st.sampled_from(
    [
        *("gpu", "mps", "ts", "mig-1g10gb-0", "mig-1g10gb-3", "mig-1g10gb-6", "mig-2g20gb-2"),
        *("mig-3g40gb-0", "mig-3g40gb-4", "mig-4g40gb-0", "mig-7g80gb-0"),
    ]
)
FAULTS: st.SearchStrategy[Call] = st.sampled_from(
    ["create_gpu_instance", "create_compute_instance", "destroy_gpu_instance", "set_compute_mode"]
)


class KindMachine(RuleBasedStateMachine):
    """Two GPUs whose MIG mode may be switched, five claims, one process after another."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.directory = tempfile.TemporaryDirectory()
        self.clock = FakeClock()
        self.node: KindsNode = make_node(
            Path(self.directory.name), board="h100-sxm5-80gb-x8", dynamic=True, clock=self.clock
        )
        self.claims = Claims()
        self.foreign: dict[Any, list[Any]] = {}

    def teardown(self) -> None:
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        self.directory.cleanup()

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    async def attempt(self, work: Any) -> bool:
        try:
            await work
        except TangramError as error:
            event(type(error).__name__)
            return False
        event("done")
        return True

    @rule(number=NUMBERS, gpu=st.integers(0, 1), what=DEVICES, percent=st.sampled_from(["30", "60", None]))
    def allocate(self, number: int, gpu: int, what: str, percent: str | None) -> None:
        """Anything, also what overlaps: nobody but the node looks at two claims together."""
        more = {"consumedCapacity": {"cores": percent}} if percent and what == "mps" else {}
        try:
            made = claim(self.node, (gpu, what), number=number, **more)
        except AssertionError:
            return  # not offered now
        self.claims.put(made)

    @rule(number=NUMBERS, gpu=st.integers(0, 1), what=DEVICES, percent=st.sampled_from(["30", "60"]))
    def a_pod_comes(self, number: int, gpu: int, what: str, percent: str) -> None:
        if f"claim-{number}" not in self.claims.objects:
            self.allocate(number, gpu, what, percent)
        self.prepare(number)

    @rule(number=NUMBERS, gpu=st.integers(0, 1), what=DEVICES)
    def a_pod_comes_after_another(self, number: int, gpu: int, what: str) -> None:
        self.a_pod_goes(number)
        self.a_pod_comes(number, gpu, what, "30")

    @rule(number=NUMBERS)
    def a_pod_goes(self, number: int) -> None:
        self.unprepare(number)
        self.delete(number)

    @rule(number=NUMBERS)
    def delete(self, number: int) -> None:
        self.claims.remove(number)

    @rule(number=NUMBERS)
    def prepare(self, number: int) -> None:
        stored = self.claims.objects.get(f"claim-{number}")
        if stored is not None:
            self.run(self.attempt(self.node.preparer.prepare(self.claims.put(stored))))
            self.node.look()

    @rule(number=NUMBERS)
    def unprepare(self, number: int) -> None:
        assert self.run(self.attempt(self.node.preparer.unprepare(uid(number))))
        assert uid(number) not in self.node.store.load().claims
        self.node.look()

    @rule(number=NUMBERS, call=FAULTS)
    def prepare_and_unprepare_with_a_fault(self, number: int, call: Call) -> None:
        self.node.hardware.fail(Fault(call=call, error="UNKNOWN"))
        self.prepare(number)
        self.run(self.attempt(self.node.preparer.unprepare(uid(number))))
        self.node.hardware.faults.plan([])
        self.run(self.node.reconciler(self.claims).local())
        self.node.look()

    @rule(number=NUMBERS, position=st.integers(0, 1), restarts=st.booleans())
    def a_pod_goes_while_a_gpu_is_lost(self, number: int, position: int, restarts: bool) -> None:
        """The GPU comes back without a reset: what it was left with is ours still."""
        gpu = self.node.gpu_at(position).uuid
        self.node.hardware.lose(gpu)
        self.a_pod_goes(number)
        self.run(self.node.reconciler(self.claims).local())
        self.node.hardware.recover(gpu)
        self.node.look()
        if restarts:
            self.restart()
        self.run(self.node.reconciler(self.claims).local())
        self.node.look()

    @rule(number=NUMBERS)
    def all_files_of_a_claim_are_lost(self, number: int) -> None:
        held = self.node.store.load().claims.get(uid(number))
        if held is None or any(isinstance(step, MigStep) for step in held.undo):
            return  # an instance without any file would be somebody's
        self.node.held_file(number).unlink()
        self.node.cdi_file(number).unlink(missing_ok=True)
        self.delete(number)
        self.run(self.node.reconciler(self.claims).local())

    @rule()
    def restart(self) -> None:
        self.node.start()
        self.node.look()
        self.run(self.node.reconciler(self.claims).local(at_start=True))

    @rule()
    def reboot(self) -> None:
        self.foreign.clear()
        self.node.mps.joined.clear()
        self.node.reboot()
        self.run(self.node.reconciler(self.claims).local(at_start=True))

    @rule()
    def reconcile(self) -> None:
        for _ in range(2):
            self.run(self.node.reconciler(self.claims).pass_once())
            self.run(self.clock.advance(CONFIRM_AFTER_S))
        self.node.look()

    @precondition(lambda self: any(self.modes()))
    @rule(position=st.integers(0, 1), start=st.sampled_from([0, 4]))
    def somebody_cuts_a_gpu(self, position: int, start: int) -> None:
        gpu = self.node.gpu_at(position).uuid
        try:
            number = self.node.hardware.create_gpu_instance(
                gpu, profile_id=9, placement=MigPlacement(start, 4)
            )
        except TangramError:
            return
        made = self.node.hardware.create_compute_instance(gpu, gpu_instance_id=number)
        self.foreign.setdefault(gpu, []).append((MigPlacement(start, 4), (made.uuid,)))
        self.node.look()

    @rule()
    def somebody_mends_them(self) -> None:
        for gpu, instances in self.foreign.items():
            theirs = {mig_uuid for _, mig_uuids in instances for mig_uuid in mig_uuids}
            for instance in self.node.hardware.gpu_instances(gpu):
                if theirs & {compute.uuid for compute in instance.compute_instances}:
                    self.node.hardware.destroy_compute_instance(
                        gpu, gpu_instance_id=instance.gpu_instance_id, compute_instance_id=0
                    )
                    self.node.hardware.destroy_gpu_instance(gpu, gpu_instance_id=instance.gpu_instance_id)
        self.foreign.clear()
        self.node.look()

    def modes(self) -> list[bool]:
        return [gpu.mig_mode == "enabled" for gpu in self.node.hardware.discover().gpus]

    @invariant()
    def hardware_is_what_claims_hold(self) -> None:
        assert_consistent(self.node, foreign=self.foreign)

    @invariant()
    def nothing_overlaps(self) -> None:
        claims: list[HeldClaim] = list(self.node.store.load().claims.values())
        for gpu in self.node.hardware.discover().gpus:
            own = [device for held in claims for device in held.devices if device.uuid == gpu.uuid]
            assert len({device.kind for device in own}) <= 1
            masks = [device.mig.placement.mask for device in own if device.mig is not None]
            assert sum(masks) == _union(masks)
            assert sum(device.kind == "gpu" for device in own) <= 1
            shares = [
                Share(memory_bytes=each.memory_bytes, cores=each.cores, replicas=each.replicas)
                for device in own
                if (each := device.share) is not None
            ]
            assert excess(total(shares), gpu_memory_bytes=gpu.memory_bytes, replicas=4) == ""

    @invariant()
    def steps_of_this_boot_name_what_is_there(self) -> None:
        for held in self.node.store.load().claims.values():
            for step in held.undo:
                if isinstance(step, MigStep) and held.boot_id == self.node.boot_id:
                    assert step.gpu_instance_id is not None


def _union(masks: list[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union


TestKindMachine = KindMachine.TestCase
TestKindMachine.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
