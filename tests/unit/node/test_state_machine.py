"""Random sequences of what a kubelet, users, crashes and broken disks do: the invariants hold throughout."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.unit.node.support import Claims, Node, backend, claim_object, uid

from tangram.base.errors import DeviceHeldError
from tangram.node.reconcile import CONFIRM_AFTER_S, Reconciler
from tangram.testing.clock import FakeClock

NUMBERS = st.integers(min_value=1, max_value=5)
DEVICES = st.sets(st.integers(min_value=0, max_value=3), min_size=1, max_size=3)


class NodeMachine(RuleBasedStateMachine):
    """Four GPUs, five claims, one process after another."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.directory = tempfile.TemporaryDirectory()
        self.clock = FakeClock()
        self.node = Node(Path(self.directory.name), hardware=backend("t4-x4"), clock=self.clock)
        self.claims = Claims()
        self.reconciler: Reconciler = self.node.reconciler(self.claims)
        self.monitors: dict[str, bool] = {}
        """Whether a claim has admin access, as its held file said when it could be read last."""

    def teardown(self) -> None:
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        self.directory.cleanup()

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    @rule(number=NUMBERS, devices=DEVICES, admin=st.booleans())
    def allocate(self, number: int, devices: set[int], admin: bool) -> None:
        """Any claim may be allocated anything: nobody checks that two claims do not share a device."""
        names = [self.node.devices[position] for position in sorted(devices)]
        self.claims.put(claim_object(names, number=number, adminAccess=admin))

    @rule(number=NUMBERS)
    def delete_claim(self, number: int) -> None:
        self.claims.remove(number)

    @rule(number=NUMBERS)
    def prepare(self, number: int) -> None:
        stored = self.claims.objects.get(f"claim-{number}")
        if stored is None:
            return
        before = self.node.store.load()
        try:
            held, _ = self.run(self.node.preparer.prepare(self.claims.put(stored)))
        except DeviceHeldError as error:
            holders = before.claims.keys() | self.node.cdi.uids()
            others = {f"ns/claim-{int(holder[-3:])}" for holder in holders - {uid(number)}}
            assert error.holder in others  # noqa: PT017 - whether there is an error depends on what went before
            return
        assert held.phase == "prepared"
        assert self.node.store.load().claims[uid(number)] == held
        assert uid(number) in self.node.cdi.uids()
        results = stored["status"]["allocation"]["devices"]["results"]
        assert {result.device for result in held.result or ()} == {entry["device"] for entry in results}

    @rule(number=NUMBERS)
    def unprepare(self, number: int) -> None:
        self.run(self.node.preparer.unprepare(uid(number)))
        assert uid(number) not in self.node.store.load().claims
        assert uid(number) not in self.node.cdi.uids()

    @rule()
    def restart(self) -> None:
        self.node.start()
        self.reconciler = self.node.reconciler(self.claims)
        self.run(self.reconciler.local(at_start=True))
        assert self.node.store.load().damaged == {}

    @rule()
    def reboot(self) -> None:
        """The CDI directory does not outlive it."""
        for path in (self.node.root / "cdi").glob("*"):
            path.unlink()
        self.node.boot_id += "x"
        self.restart()

    @rule(number=NUMBERS, content=st.sampled_from([b"", b"{", b"\0" * 64, b'{"version":1}']))
    def damage_held_file(self, number: int, content: bytes) -> None:
        if self.node.held_file(number).exists():
            self.node.held_file(number).write_bytes(content)

    @rule(number=NUMBERS, content=st.sampled_from([b"", b"{}"]))
    def damage_cdi_file(self, number: int, content: bytes) -> None:
        if self.node.cdi_file(number).exists():
            self.node.cdi_file(number).write_bytes(content)
            self.run(self.reconciler.local(at_start=True))

    @rule()
    def reconcile(self) -> None:
        """Two looks, as far apart as it takes: then files are those of claims that live here."""
        for _ in range(2):
            self.run(self.reconciler.pass_once())
            self.run(self.clock.advance(CONFIRM_AFTER_S))
        contents = self.node.store.load()
        assert contents.damaged == {}
        for number in range(1, 6):
            alive = f"claim-{number}" in self.claims.objects
            assert alive or uid(number) not in contents.claims
            assert alive or uid(number) not in self.node.cdi.uids()

    @invariant()
    def no_gpu_is_held_by_two_claims(self) -> None:
        holders: dict[str, str] = {}
        for held in self.node.store.load().claims.values():
            for device in held.devices:
                if not device.admin_access:
                    assert holders.setdefault(device.uuid, held.uid) == held.uid

    @invariant()
    def no_gpu_is_given_to_two_claims(self) -> None:
        """Whatever happened to held files: containers get GPUs by CDI files."""
        given: dict[str, str] = {}
        for claim_uid in self.node.cdi.uids():
            held = self.node.store.load().claims.get(claim_uid)
            if held is not None:
                self.monitors[claim_uid] = any(device.admin_access for device in held.devices)
            if self.monitors[claim_uid]:
                continue
            for gpu in self.node.cdi.gpus(claim_uid):
                assert given.setdefault(gpu, claim_uid) == claim_uid

    @invariant()
    def every_prepared_claim_has_its_cdi_file(self) -> None:
        for held in self.node.store.load().claims.values():
            assert held.phase == "prepared"
            assert held.uid in self.node.cdi.uids()

    @invariant()
    def nothing_else_is_left(self) -> None:
        names = {path.name for path in (self.node.root / "locks").iterdir()}
        assert names == {"lock"}
        assert not list(self.node.root.rglob(".*.tmp"))


TestNodeMachine = NodeMachine.TestCase
TestNodeMachine.settings = settings(max_examples=30, stateful_step_count=30)
