"""One active process of several, by a Lease (coordination.k8s.io/v1)."""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from typing import Any

from tangram.base.clock import Clock, rfc3339_micro, within
from tangram.base.errors import (
    AlreadyExistsError,
    ConfigurationError,
    ConflictError,
    InvalidObjectError,
    KubeError,
    LeadershipLostError,
    NotFoundError,
)
from tangram.base.logs import get_logger
from tangram.kube.client import Client
from tangram.kube.decoding import decode
from tangram.kube.objects import Lease
from tangram.kube.resources import LEASES

# No single request may use up the time in which several could have renewed the lease.
_REQUEST_TIMEOUT_S = 5.0
_JITTER = 1.2
# Parts of the retry period after which a candidate looks at a held lease again: one that is given back has
# its next holder within half a period.
_LOOK_SHORTEST, _LOOK_LONGEST = 0.25, 0.5
_FAILURES = (KubeError, InvalidObjectError, TimeoutError)


class LeaderElector:
    """Runs a coroutine while this process holds a lease, and stops it before anybody else can hold it.

    All times are of the own monotonic clock, so wrong wall clocks do no harm: a candidate takes a lease over
    only after it has seen it unchanged for the whole duration its holder asked for; the holder gives up
    `renew_deadline_s` after the start of its last successful renewal. Every write is a compare-and-swap on
    the resourceVersion. `identity` must differ between living processes: a lease held by the own identity is
    taken at once, for it was left by this process before its restart. Not so one that was lost without a
    restart: requests that were cut off then may still be on their way. It is left to run out first, as every
    other candidate lets it.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        name: str,
        identity: str,
        clock: Clock,
        lease_duration_s: float = 15.0,
        renew_deadline_s: float = 10.0,
        retry_period_s: float = 2.0,
    ) -> None:
        if not 0 < retry_period_s < renew_deadline_s < lease_duration_s:
            raise ConfigurationError(
                f"lease timings {retry_period_s:g}, {renew_deadline_s:g}, {lease_duration_s:g} s do not grow",
                next_step="choose retry period < renew deadline < lease duration",
            )
        if not identity:
            raise ConfigurationError("the identity is empty", next_step="pass --identity")
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._clock = clock
        self._lease_duration_s = lease_duration_s
        self._renew_deadline_s = renew_deadline_s
        self._retry_period_s = retry_period_s
        self._log = get_logger("election", lease=f"{namespace}/{name}", identity=identity)
        self._leading = False
        self._renewed_at_s = 0.0
        self._lost_until_s = 0.0  # when a lease that was lost has run out for everybody
        self._version = ""  # resourceVersion of the lease as last seen
        self._seen_at_s = 0.0  # when that version was first seen
        # renewTimes of writes since the last success: any of them may have happened
        self._attempted: set[str] = set()

    @property
    def is_leader(self) -> bool:
        """Whether this process may act as leader now."""
        return self._leading and self._remaining_s() > 0

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Waits for the lease, then runs `lead` to its end, and gives the lease back.

        Raises LeadershipLostError, with `lead` cancelled and ended, if the lease is lost (then it may be run
        again); what `lead` raises otherwise. When cancelled it cancels `lead`, waits for its end, and gives
        the lease back, also one that it may have got just then.
        """
        await self._clock.sleep(self._lost_until_s - self._clock.monotonic_s())
        try:
            await self._acquire()
        except asyncio.CancelledError:
            if self._attempted or self._leading:
                self._leading = False
                await self._release()
            raise
        self._log.info("leadership_acquired")
        leading = asyncio.ensure_future(lead())
        keeping = asyncio.ensure_future(self._keep())
        try:
            await asyncio.wait({leading, keeping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # The lease is kept while `lead` ends.
            self._leading = not keeping.done()
            leading.cancel()
            await asyncio.wait({leading})
            lost = keeping.result() if keeping.done() else ""
            self._leading = False
            keeping.cancel()
            await asyncio.wait({keeping})
            if not lost:
                await self._release()
        if lost:
            self._lost_until_s = self._renewed_at_s + self._lease_duration_s
            if not leading.cancelled() and (error := leading.exception()):
                self._log.error("leader_failed_while_stopping", error=repr(error))
            self._log.error("leadership_lost", cause=lost)
            raise LeadershipLostError(lost, next_step="see the API server's state and its latency")
        await leading

    # --- becoming leader -----------------------------------------------------------------------------------

    async def _acquire(self) -> None:
        while True:
            try:
                if await within(self._try_to_acquire(), seconds=_REQUEST_TIMEOUT_S, clock=self._clock):
                    return
                pause = random.uniform(_LOOK_SHORTEST, _LOOK_LONGEST)  # noqa: S311
            except _FAILURES as error:
                self._log.warning("lease_not_acquired", error=str(error))
                pause = 1 + _JITTER * random.random()  # noqa: S311
            await self._clock.sleep(self._retry_period_s * pause)

    async def _try_to_acquire(self) -> bool:
        # Noted before anything can come between the answer and whoever waits for it.
        self._leading = await self._attempt()
        return self._leading

    async def _attempt(self) -> bool:
        started_s = self._clock.monotonic_s()
        try:
            lease = await self._read()
        except NotFoundError:
            return await self._create(started_s)
        holder = lease.spec.holder_identity or ""
        if lease.metadata.resource_version != self._version:
            self._version = lease.metadata.resource_version
            self._seen_at_s = self._clock.monotonic_s()
            self._log.info("lease_observed", holder=holder)
        duration_s = lease.spec.lease_duration_seconds or self._lease_duration_s
        expired = self._clock.monotonic_s() >= self._seen_at_s + duration_s
        if holder not in {"", self._identity} and not expired:
            return False
        changes = holder != self._identity
        spec = self._spec() | {"leaseTransitions": (lease.spec.lease_transitions or 0) + changes}
        try:
            await self._write(spec | {"acquireTime": spec["renewTime"]})
        except ConflictError:
            self._attempted.discard(spec["renewTime"])
            return False  # somebody was faster
        self._renewed_at_s = started_s
        return True

    async def _create(self, started_s: float) -> bool:
        spec = self._spec()
        body = {
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": spec | {"leaseTransitions": 0, "acquireTime": spec["renewTime"]},
        }
        try:
            created = decode(await self._client.create(LEASES, body, namespace=self._namespace), Lease)
        except AlreadyExistsError:
            self._attempted.discard(spec["renewTime"])
            return False
        self._attempted.clear()
        self._version = created.metadata.resource_version
        self._renewed_at_s = started_s
        return True

    # --- staying leader ------------------------------------------------------------------------------------

    async def _keep(self) -> str:
        """Renews until that is no longer possible; says why."""
        while True:
            await self._clock.sleep(min(self._retry_period_s, self._remaining_s()))
            remaining_s = self._remaining_s()
            if remaining_s <= 0:
                return f"the lease was not renewed for {self._renew_deadline_s:g} s"
            started_s = self._clock.monotonic_s()
            try:
                holder = await within(
                    self._renew(), seconds=min(remaining_s, _REQUEST_TIMEOUT_S), clock=self._clock
                )
            except _FAILURES as error:
                self._log.warning("lease_not_renewed", error=str(error), remaining_s=remaining_s)
                continue
            if holder != self._identity:
                return f"the lease is held by {holder!r}"
            self._renewed_at_s = started_s

    async def _renew(self) -> str:
        """One renewal; who holds the lease after it."""
        try:
            await self._write(self._spec())
        except NotFoundError:  # deleted under us
            return self._identity if await self._create(self._clock.monotonic_s()) else "another process"
        except ConflictError:
            # Somebody else wrote, or a write of ours whose answer was lost.
            lease = await self._read()
            if (holder := lease.spec.holder_identity or "") != self._identity:
                return holder
            if lease.spec.renew_time not in self._attempted:
                return f"{holder} (another process of the same identity)"
            self._version = lease.metadata.resource_version
            await self._write(self._spec())
        return self._identity

    async def _release(self) -> None:
        """Lets the next candidate in at once. A failure costs it the lease duration, nothing else."""
        try:
            await within(self._give_back(), seconds=_REQUEST_TIMEOUT_S, clock=self._clock)
        except _FAILURES as error:
            self._log.warning("lease_not_released", error=str(error))

    async def _give_back(self) -> None:
        while True:
            # Read first: a write that was cut off may have taken effect, and changed the version.
            lease = await self._read()
            if (holder := lease.spec.holder_identity or "") != self._identity:
                self._log.info("lease_not_held", holder=holder)
                return
            self._version = lease.metadata.resource_version
            try:
                await self._write({"holderIdentity": "", "leaseDurationSeconds": 1})
            except ConflictError:
                continue
            self._log.info("lease_released")
            return

    # --- requests ------------------------------------------------------------------------------------------

    async def _read(self) -> Lease:
        return decode(await self._client.get(LEASES, name=self._name, namespace=self._namespace), Lease)

    async def _write(self, spec: dict[str, Any]) -> None:
        patch = {"metadata": {"resourceVersion": self._version}, "spec": spec}
        answer = await self._client.patch(LEASES, patch, name=self._name, namespace=self._namespace)
        self._version = decode(answer, Lease).metadata.resource_version
        self._attempted.clear()

    def _spec(self) -> dict[str, Any]:
        now = rfc3339_micro(self._clock.now())
        self._attempted.add(now)
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": math.ceil(self._lease_duration_s),
            "renewTime": now,
        }

    def _remaining_s(self) -> float:
        return self._renewed_at_s + self._renew_deadline_s - self._clock.monotonic_s()
