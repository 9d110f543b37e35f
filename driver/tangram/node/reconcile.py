"""Reconciling held files, CDI files and claims: what is ours and unowned goes, what is foreign stays.

A pass has two parts. `local` needs nobody: damaged files, half-done work. `claims` asks the
API server for each claim that has a file here; one that cannot be read now is left alone until the next pass.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Literal

from tangram import DRIVER_NAME
from tangram.base.clock import Clock, within
from tangram.base.errors import KubeError, NotFoundError, TangramError
from tangram.base.logs import get_logger
from tangram.kube.decoding import decode
from tangram.kube.objects import Node, ResourceClaim
from tangram.kube.resources import NODES, RESOURCE_CLAIMS
from tangram.kubeletplugin.driver import ClaimReader, ClaimReference
from tangram.node.cdifile import CdiFiles
from tangram.node.held import HeldClaim
from tangram.node.heldstore import HeldStore
from tangram.node.metrics import RECONCILE_ACTIONS, RECONCILE_FAILURES
from tangram.node.prepare import Preparer

_log = get_logger("node")

INTERVAL_S = 60.0
CONFIRM_AFTER_S = 120.0
"""A claim must be gone for so long, while the node is Ready, before what it holds is freed here.

The kubelet unprepares by itself once the containers have ended; this is for claims that it has forgotten. A
kubelet that is stopped ends nothing: the containers of a force-deleted pod run on until it is back. It takes
the control plane some 50 s to notice (node-monitor-grace-period), hence the length.
"""
CONFIRM_INTERVAL_S = 30.0
_READS_AT_ONCE = 8


def belongs_here(claim: ResourceClaim, *, uid: str, pool: str) -> bool:
    """Whether the claim is the one held, and still has devices of this node allocated."""
    results = (claim.allocation.devices.results or []) if claim.allocation else []
    return claim.metadata.uid == uid and any(
        result.driver == DRIVER_NAME and result.pool == pool for result in results
    )


class Reconciler:
    """Runs the passes. `confirmed` is told of each claim that lives, with what is held for it, and the
    devices of it that are gone.
    """

    def __init__(
        self,
        *,
        pool: str,
        node_name: str,
        store: HeldStore,
        cdi: CdiFiles,
        preparer: Preparer,
        client: ClaimReader,
        clock: Clock,
        confirmed: Callable[[ResourceClaim, HeldClaim, list[str]], None],
    ) -> None:
        self._pool = pool
        self._node_name = node_name
        self._store = store
        self._cdi = cdi
        self._preparer = preparer
        self._client = client
        self._clock = clock
        self._confirmed = confirmed
        self._gone_since_s: dict[str, float] = {}
        self._asked = asyncio.Event()
        self._reads = asyncio.Semaphore(_READS_AT_ONCE)

    async def run(self) -> None:
        """A pass at once and each minute until cancelled; sooner if asked, and while something is held for a
        claim that is gone."""
        while True:
            self._asked.clear()
            await self.pass_once()
            pause_s = CONFIRM_INTERVAL_S if self._gone_since_s else INTERVAL_S
            with contextlib.suppress(TimeoutError):
                await within(self._asked.wait(), seconds=pause_s, clock=self._clock)

    def ask(self) -> None:
        """Has `run` make a pass now: something has changed that users should hear of."""
        self._asked.set()

    async def pass_once(self) -> None:
        """One whole pass. Raises nothing: what fails for a claim is logged and tried again."""
        await self.local()
        await self.claims()

    async def local(self, *, at_start: bool = False) -> None:
        """What needs no API server. At the start files of a newer version are set aside too: later they are
        those of a newer plugin that takes over from this one."""
        try:
            contents = await asyncio.to_thread(self._store.load)
        except TangramError as error:
            self._failed("", error)
            return
        for uid in contents.damaged:
            await self._guarded(uid, self._preparer.examine(uid, newer=at_start))
        half_done = [uid for uid, held in contents.claims.items() if held.phase != "prepared"]
        whole = contents.claims.keys() - half_done if at_start else ()
        RECONCILE_ACTIONS.labels("settled").inc(len(half_done))
        # Side by side: one whose GPU hangs, or is in use, costs no other.
        await asyncio.gather(
            *(self._guarded(uid, self._preparer.settle(uid)) for uid in half_done),
            *(self._guarded(uid, self._preparer.restore(uid)) for uid in sorted(whole)),
        )
        await self._guarded("", self._strays())
        await self._guarded("", self._debts())

    async def _strays(self) -> None:
        """Members of MPS daemons whose held file is gone."""
        for uid in await self._preparer.expel_strays():
            RECONCILE_ACTIONS.labels("mps_member_removed").inc()
            _log.warning("stray_mps_member_removed", uid=uid)

    async def _debts(self) -> None:
        """What GPUs were left with when their claims ended, or lost their files."""
        gpus = await self._preparer.indebted()
        await asyncio.gather(*(self._guarded(gpu, self._preparer.settle_gpu(gpu)) for gpu in gpus))

    async def claims(self) -> None:
        """Compares what is here with the claims."""
        try:
            contents = await asyncio.to_thread(self._store.load)
            orphans = await asyncio.to_thread(self._cdi.uids) - {*contents.claims, *contents.damaged}
        except TangramError as error:
            self._failed("", error)
            return
        prepared = [held for held in contents.claims.values() if held.phase == "prepared"]
        self._gone_since_s = {
            uid: since_s for uid, since_s in self._gone_since_s.items() if uid in contents.claims
        }
        await asyncio.gather(
            *(self._guarded(held.uid, self._check_held(held)) for held in prepared),
            *(self._guarded(uid, self._check_orphan(uid)) for uid in sorted(orphans)),
        )

    async def _check_held(self, held: HeldClaim) -> None:
        claim = await self._read(ClaimReference(namespace=held.namespace, name=held.name, uid=held.uid))
        if claim is not None:
            self._gone_since_s.pop(held.uid, None)
            # A GPU that is lost, or an instance that is gone, fails these; the claim's user is told of it.
            await self._guarded(held.uid, self._preparer.restore(held.uid))
            gone: list[str] = []
            await self._guarded(held.uid, self._look_for_vanished(held, gone))
            self._confirmed(claim, held, gone)
            return
        now_s = self._clock.monotonic_s()
        since_s = self._gone_since_s.setdefault(held.uid, now_s)
        if not await self._node_ready():
            self._gone_since_s[held.uid] = now_s
            return
        if now_s - since_s < CONFIRM_AFTER_S:
            return
        await self._preparer.unprepare(held.uid)
        del self._gone_since_s[held.uid]
        RECONCILE_ACTIONS.labels("unprepared").inc()
        _log.warning("held_claim_gone", claim=held.label, gpus=sorted(held.gpus))

    async def _look_for_vanished(self, held: HeldClaim, gone: list[str]) -> None:
        gone += await self._preparer.vanished(held)
        if gone:
            _log.error("mig_instances_gone", claim=held.label, devices=gone)

    async def _check_orphan(self, uid: str) -> None:
        """A CDI file without held state: its held file was lost. Rebuilt if the claim lives, else removed."""
        owner = await asyncio.to_thread(self._cdi.owner, uid)
        claim = await self._read(owner) if owner else None
        if claim is not None:
            if not await self._preparer.rebuild(claim):
                return  # prepared since this pass began
            action: Literal["rebuilt", "cdi_removed"] = "rebuilt"
        elif await self._preparer.drop_cdi(uid):
            action = "cdi_removed"
        else:
            return
        RECONCILE_ACTIONS.labels(action).inc()
        _log.warning(f"orphan_{action}", uid=uid, claim=str(owner) if owner else "")

    async def _node_ready(self) -> bool:
        """Whether the kubelet works, as the control plane knows. Raises KubeError."""
        try:
            node = decode(await self._client.get(NODES, name=self._node_name), Node)
        except NotFoundError:
            return False
        return any(each.type == "Ready" and each.status == "True" for each in node.status.conditions or ())

    async def lives(self, reference: ClaimReference) -> bool:
        """Whether the claim exists and is allocated on this node. Raises KubeError."""
        return await self._read(reference) is not None

    async def _read(self, reference: ClaimReference) -> ResourceClaim | None:
        """The claim if it lives and is allocated here. Raises KubeError if that cannot be known now."""
        async with self._reads:
            try:
                data = await self._client.get(
                    RESOURCE_CLAIMS, name=reference.name, namespace=reference.namespace
                )
            except NotFoundError:
                return None
        claim = decode(data, ResourceClaim)
        return claim if belongs_here(claim, uid=reference.uid, pool=self._pool) else None

    async def _guarded(self, uid: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except TangramError as error:
            self._failed(uid, error)
        except Exception:  # noqa: BLE001 - logged with its traceback below
            # One claim must not end the passes for all others.
            RECONCILE_FAILURES.inc()
            _log.exception("reconcile_failed_internally", uid=uid)

    def _failed(self, uid: str, error: TangramError) -> None:
        RECONCILE_FAILURES.inc()
        level = _log.info if isinstance(error, KubeError) else _log.error
        level("reconcile_failed", uid=uid, error=str(error))
