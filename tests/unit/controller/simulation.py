"""A cluster that can stop between any two steps: an API server whose watches lag and whose answers get lost,
a scheduler that binds and vetoes, users who delete and create, and the allocation loop among them.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from tests.fleet import claim, device_class, kube_node, machine, pod, slices
from tests.unit.controller.simulated_api import KINDS, Api, Json, allocation_of, node_of

from tangram.allocation import Settings, Statistics
from tangram.base.errors import ConflictError, NotFoundError
from tangram.controller.claims import decode_class
from tangram.controller.decide import Action, Placed, decide
from tangram.controller.exclusions import Exclusions
from tangram.controller.freeing import give_back
from tangram.controller.inventory import decode_slice
from tangram.controller.loop import AllocationLoop
from tangram.controller.nodefit import decode_node
from tangram.controller.pods import decode_pod
from tangram.controller.reporting import Reporter
from tangram.controller.state import State
from tangram.controller.unused import UnusedClaims
from tangram.kube.client import decode
from tangram.kube.decoding import ObjectKey
from tangram.kube.objects import ResourceClaim
from tangram.kube.reflector import Change
from tangram.kube.workqueue import WorkQueue
from tangram.testing.clock import FakeClock

_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "ResourceSlice": decode_slice,
    "DeviceClass": decode_class,
    "Node": decode_node,
    "Pod": decode_pod,
    "ResourceClaim": lambda raw: decode(raw, ResourceClaim),
}
GPUS = machine(count=3, switch_links=12)
FAULTS = ("", "lost", "dropped", "late", "slow", "slow-lost", "slow-answer", "slow-late", "failing")


class UnderWay(NamedTuple):
    """A pod in `PreBind`: the node that was found for it, and its claims by name and uid."""

    node: str
    claims: dict[str, str]
    since_s: float


@contextlib.contextmanager
def seldom_swept() -> Iterator[None]:
    """Unused claims are looked for every half minute, so that hours pass in less time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tangram.controller.freeing._PERIOD_S", 30.0)
        yield


class Simulation:
    """`state` is what the controller believes; `act` does one thing, chosen by a number.

    `gives_back`: the controller also takes devices from pods that do not use them.
    """

    def __init__(self, *, nodes: int = 2, gives_back: bool = False) -> None:
        self.clock = FakeClock()
        self.api = Api()
        self.api.create(device_class())
        for index in range(nodes):
            self.api.create(kube_node(f"n{index}"))
            for item in slices(f"n{index}", GPUS):
                self.api.create(item)
        self._gives_back = gives_back
        self._tasks: list[asyncio.Task[None]] = []
        self.under_way: dict[str, UnderWay] = {}
        self.start()

    # --- the controller -------------------------------------------------------------------------------

    def start(self) -> None:
        """A new leader: reads everything, then decides."""
        self.state, queue = self._new_state()
        self._known: dict[tuple[str, ObjectKey], Any] = {}
        self.relist()
        reporter = Reporter(_NoEvents())  # type: ignore[arg-type]
        loop = AllocationLoop(
            client=self.api,  # type: ignore[arg-type]
            state=self.state,
            queue=queue,
            reporter=reporter,
            clock=self.clock,
            settings=Settings(),
        )
        self._tasks = [asyncio.create_task(loop.run())]
        if self._gives_back:
            unused = UnusedClaims(idle_ttl_s=60, unbound_timeout_s=20)
            freeing = give_back(self.api, self.state, reporter, unused, clock=self.clock)
            self._tasks.append(asyncio.create_task(freeing))

    def _new_state(self) -> tuple[State, WorkQueue[ObjectKey]]:
        def requeue(key: ObjectKey) -> None:
            queue.add(key)

        state = State(clock=self.clock, exclusions=Exclusions(), requeue=requeue)
        queue: WorkQueue[ObjectKey] = WorkQueue(clock=self.clock, order=state.order)
        return state, queue

    async def stop(self) -> None:
        for task in self._tasks:
            assert not task.done(), task.exception()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self.api.slow.clear()

    def _tell(
        self, state: State, kind: str, key: ObjectKey, raw: bytes | None, known: dict[Any, Any]
    ) -> None:
        old = known.pop((kind, key), None)
        new = _DECODERS[kind](raw) if raw is not None else None
        if old is not None and new is not None and _uid(old) != _uid(new):
            self._call(state, kind, Change(key, old, None))  # as the reflector does
            old = None
        if new is not None:
            known[kind, key] = new
        if old is not None or new is not None:
            self._call(state, kind, Change(key, old, new))

    @staticmethod
    def _call(state: State, kind: str, change: Change[Any]) -> None:
        handlers: dict[str, Callable[[Change[Any]], None]] = {
            "ResourceSlice": state.on_slice,
            "DeviceClass": state.on_class,
            "Node": state.on_node,
            "Pod": state.on_pod,
            "ResourceClaim": state.on_claim,
        }
        handlers[kind](change)

    def deliver(self, kind: str, count: int = 1) -> None:
        """The next events of a watch."""
        for _ in range(min(count, len(self.api.events[kind]))):
            key, raw = self.api.events[kind].popleft()
            self._tell(self.state, kind, key, raw, self._known)

    def relist(self) -> None:
        """All watches were too old: what happened in between is not seen."""
        for kind in KINDS:
            self.api.events[kind].clear()
            there = {key for k, key in self.api.objects if k == kind}
            for key in sorted(there | {key for k, key in self._known if k == kind}):
                item = self.api.objects.get((kind, key))
                self._tell(self.state, kind, key, json.dumps(item).encode() if item else None, self._known)

    def fresh(self) -> State:
        """What a new leader would believe, once it has looked at every pod."""
        state, _ = self._new_state()
        for kind in KINDS:
            for (k, key), item in sorted(self.api.objects.items()):
                if k == kind:
                    self._tell(state, kind, key, json.dumps(item).encode(), {})
        for key in state.pods:
            action = self.decide(state, key.name)
            if isinstance(action, Placed):
                state.place(key, action.node)
        return state

    def decide(self, state: State, name: str) -> Action:
        return decide(
            state,
            ObjectKey("default", name),
            now_s=self.clock.monotonic_s(),
            settings=Settings(),
            statistics=Statistics(),
        )

    # --- the others -----------------------------------------------------------------------------------

    def create_claim(self, name: str, count: int) -> None:
        if self.api.find("ResourceClaim", name) is None:
            self.api.create(claim(name, count=count))

    def create_pod(self, name: str, *claims: str) -> None:
        if self.api.find("Pod", name) is None:
            container = {"name": "c", "resources": {"requests": {"cpu": "3"}}}
            self.api.create(pod(name, *claims, containers=[container]))

    def claims_of(self, item: Json) -> list[Json | None]:
        names = {entry["resourceClaimName"] for entry in item["spec"]["resourceClaims"]}
        return [self.api.find("ResourceClaim", name) for name in sorted(names)]

    def bind(self, item: Json) -> None:
        """kube-scheduler, if all claims are allocated for one node."""
        claims = self.claims_of(item)
        nodes = {node_of(c) if c is not None else "" for c in claims}
        if item["metadata"]["uid"] in self.under_way:
            return
        if item["spec"].get("nodeName") or len(nodes) != 1 or nodes == {""}:
            return
        for c in claims:
            assert c is not None
            users = c["status"].get("reservedFor", [])
            reference = {"resource": "pods", "name": item["metadata"]["name"], "uid": item["metadata"]["uid"]}
            self.api.store({**c, "status": {**c["status"], "reservedFor": [*users, reference]}})
        spec = {**item["spec"], "nodeName": nodes.pop()}
        self.api.store({**item, "spec": spec, "status": {"phase": "Running"}})

    def set_out(self, item: Json) -> None:
        """kube-scheduler has found the node and goes on to `PreBind`, which may take its time."""
        claims = self.claims_of(item)
        nodes = {node_of(c) if c is not None else "" for c in claims}
        if item["spec"].get("nodeName") or len(nodes) != 1 or nodes == {""}:
            return
        uids = {c["metadata"]["name"]: c["metadata"]["uid"] for c in claims if c is not None}
        self.under_way.setdefault(
            item["metadata"]["uid"], UnderWay(nodes.pop(), uids, self.clock.monotonic_s())
        )

    def arrive(self, item: Json) -> None:
        """`bindClaim` for each claim, which takes what it finds if that is allocated; then the binding."""
        way = self.under_way.pop(item["metadata"]["uid"], None)
        if way is None:
            return
        reference = {"resource": "pods", "name": item["metadata"]["name"], "uid": item["metadata"]["uid"]}
        reserved: list[Json] = []
        for c in self.claims_of(item):
            if c is None or c["metadata"]["uid"] != way.claims[c["metadata"]["name"]] or not allocation_of(c):
                self._unreserve(reserved, item)
                return
            users = c["status"].get("reservedFor", [])
            reserved.append({**c, "status": {**c["status"], "reservedFor": [*users, reference]}})
            self.api.store(reserved[-1])
        strayed = [node_of(c) for c in reserved if node_of(c) != way.node]
        assert not strayed, f"bound to {way.node}, but allocated on {strayed}"
        spec = {**item["spec"], "nodeName": way.node}
        self.api.store({**item, "spec": spec, "status": {"phase": "Running"}})

    def _unreserve(self, reserved: list[Json], item: Json) -> None:
        for c in reserved:
            left = [user for user in c["status"]["reservedFor"] if user["uid"] != item["metadata"]["uid"]]
            self.api.store({**c, "status": {**c["status"], "reservedFor": left}})

    def judge(self, item: Json, message: str) -> None:
        """An attempt of kube-scheduler on a pod that is not under way ends badly."""
        if item["spec"].get("nodeName") or item["metadata"]["uid"] in self.under_way:
            return
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        self.api.store({**item, "status": {**item["status"], "conditions": [condition]}})

    async def wait(self, seconds: float) -> None:
        """Time passes; nobody is under way for longer than kube-scheduler allows."""
        now_s = self.clock.monotonic_s()
        self.under_way = {u: way for u, way in self.under_way.items() if way.since_s + 600 > now_s + seconds}
        await self.clock.advance(seconds)

    def veto(self, c: Json) -> None:
        """kube-scheduler takes an allocation back that nobody reserved, of a pod that is not under way."""
        if any(c["metadata"]["uid"] in way.claims.values() for way in self.under_way.values()):
            return
        if allocation_of(c) and not c["status"].get("reservedFor"):
            self.api.store({**c, "status": {}})

    def delete_pod(self, item: Json) -> None:
        """With what the resource-claim controller does then."""
        self.api.delete("Pod", item["metadata"]["name"])
        self.under_way.pop(item["metadata"]["uid"], None)
        for c in self.claims_of(item):
            if c is None or not (c.get("status") or {}).get("reservedFor"):
                continue
            left = [user for user in c["status"]["reservedFor"] if user["uid"] != item["metadata"]["uid"]]
            self.api.store({**c, "status": {**c["status"], "reservedFor": left} if left else {}})

    def delete_claim(self, c: Json) -> None:
        if not (c.get("status") or {}).get("reservedFor"):
            self.api.delete("ResourceClaim", c["metadata"]["name"])

    # --- one step -------------------------------------------------------------------------------------

    async def act(self, what: str, number: int) -> None:
        """One step of the kind `what`; `number` chooses among the possible ones."""
        pods, claims = self.api.all("Pod"), self.api.all("ResourceClaim")
        match what:
            case "claim":
                self.create_claim(f"c{number % 4}", 1 + number // 4 % 3)
            case "pod":
                chosen = [f"c{i}" for i in range(4) if number >> (2 + i) & 1] or [f"c{number % 4}"]
                self.create_pod(f"p{number % 4}", *chosen[:2])
            case "deliver":
                self.deliver(KINDS[number % len(KINDS)], 1 + number // len(KINDS) % 3)
            case "watch":
                for kind in ("ResourceClaim", "Pod"):
                    self.deliver(kind, 100)
            case "relist":
                self.relist()
            case "bind" if pods:
                self.bind(pods[number % len(pods)])
            case "set-out" if pods:
                self.set_out(pods[number % len(pods)])
            case "arrive" if pods:
                self.arrive(pods[number % len(pods)])
            case "object" if pods:
                self.judge(pods[number % len(pods)], "0/2 nodes are available: no such volume")
            case "agree" if pods:
                self.judge(pods[number % len(pods)], "0/2 nodes are available: 2 cannot allocate all claims")
            case "long-time":
                await self.wait(100 * (1 + number % 8))
            case "veto" if claims:
                self.veto(claims[number % len(claims)])
            case "delete-pod" if pods:
                self.delete_pod(pods[number % len(pods)])
            case "delete-claim" if claims:
                self.delete_claim(claims[number % len(claims)])
            case "fault":
                self.api.faults.append(FAULTS[number % len(FAULTS)])
            case "slow" if self.api.slow:
                self.finish_slow()
            case "late" if self.api.late:
                self.apply_late()
            case "time":
                await self.wait(0.1 * (1 + number % 40))
            case "restart":
                await self.stop()
                # A new leader does not know what was given back under whom.
                self.under_way.clear()
                # A new leader waits until no write of its predecessor can be on its way any more.
                while self.api.late:
                    self.apply_late()
                self.start()
        await self.settle()

    def finish_slow(self) -> None:
        future = self.api.slow.popleft()
        if not future.done():
            future.set_result(None)

    def apply_late(self) -> None:
        with contextlib.suppress(ConflictError, NotFoundError):
            self.api.late.popleft()()

    async def settle(self) -> None:
        for _ in range(30):
            await asyncio.sleep(0)

    async def quiesce(self) -> None:
        """No more faults, and time enough for everything."""
        self.api.faults.clear()
        self.under_way.clear()
        while self.api.late:
            self.apply_late()
        for _ in range(40):
            while self.api.slow:
                self.finish_slow()
            for kind in KINDS:
                self.deliver(kind, 1000)
            await self.settle()
            await self.clock.advance(35)
        while any(self.api.events.values()):
            for kind in KINDS:
                self.deliver(kind, 1000)
            await self.settle()


class _NoEvents:
    def emit(self, *_: Any, **__: Any) -> None:
        pass


def _uid(record: Any) -> object:
    if isinstance(record, ResourceClaim):
        return record.metadata.uid
    return getattr(getattr(record, "key", None), "uid", "")


def waiting_pods(simulation: Simulation) -> Iterator[Json]:
    for item in simulation.api.all("Pod"):
        if not item["spec"].get("nodeName"):
            yield item
