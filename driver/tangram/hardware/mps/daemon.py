"""One GPU's MPS daemon: looked at, decided about, acted on. All effects go through a `Host`."""

from typing import Protocol

from tangram.base.backoff import Backoff
from tangram.base.clock import Clock, rfc3339
from tangram.base.errors import HardwareError, TangramError
from tangram.base.logs import get_logger
from tangram.hardware.mps import control
from tangram.hardware.mps.decide import Action, Seen, decide
from tangram.hardware.mps.processes import MpsProcess
from tangram.hardware.mps.values import (
    MIB,
    IncidentKind,
    MpsDaemon,
    MpsIncident,
    MpsMember,
    MpsShare,
    MpsState,
    MpsStatus,
    largest,
)

PROBE_S = 10.0
"""How often a daemon that serves is asked whether it still does."""
START_S = 30.0
"""How long a daemon may take until it answers; Prepare does not wait for that."""
END_S = 2.0
"""How long processes may take to end, after `quit` and after they were killed."""
STABLE_S = 60.0
"""A daemon that served for so long starts its next failure with the shortest back-off."""
_POLL_S = 0.05
_QUIT_S = 1

_log = get_logger("mps")


class Host(Protocol):
    """The effects on one GPU's daemon. Methods may raise StateError, those of processes HardwareError."""

    def members(self) -> dict[str, MpsMember]:
        """The claims that want the daemon."""
        ...

    def read_status(self) -> MpsStatus | None:
        """The status written last, whoever wrote it."""
        ...

    def write_status(self, status: MpsStatus) -> None:
        """Tells the plugin."""
        ...

    def find(self) -> list[MpsProcess]:
        """All processes of the daemon that live."""
        ...

    def identify(self, pid: int) -> MpsDaemon | None:
        """The living process of that pid; None if there is none, or it cannot be seen from here."""
        ...

    def lives(self, process: MpsDaemon) -> bool:
        """Whether this very process still runs."""
        ...

    def spawn(self) -> MpsDaemon:
        """Starts a control daemon. DriverUnavailableError where the program is not installed."""
        ...

    def output(self) -> str:
        """The last that the daemon has printed, for people; may be empty."""
        ...

    def kill(self, process: MpsDaemon) -> None:
        """Ends it at once, unless it has ended."""
        ...

    async def ask(self, command: str) -> str:
        """Sends one command to the daemon. HardwareTimeoutError, HardwareError."""
        ...

    def sweep(self) -> None:
        """Makes the daemon's directories, and empties them of what an earlier one needed."""
        ...

    def trim_logs(self) -> None:
        """Bounds the daemon's log files."""
        ...


class GpuDaemon:
    """The daemon of one GPU. `keeper` names this run of the supervisor in the status."""

    def __init__(self, uuid: str, host: Host, *, clock: Clock, keeper: str) -> None:
        self._uuid = uuid
        self._host = host
        self._clock = clock
        self._keeper = keeper
        self._backoff = Backoff(initial_s=0.5, maximum_s=60.0)
        self._daemon: MpsDaemon | None = None
        self._limits: MpsShare | None = None
        self._servers: dict[int, MpsDaemon | None] = {}
        self._faulted: set[int] = set()
        self._silent = 0
        self._was_wanted = False
        self._try_at_s = self._probe_at_s = self._serves_since_s = clock.monotonic_s()
        self._status: MpsStatus | None = None
        self._incidents = 0
        self._incident: MpsIncident | None = None

    def adopt(self) -> None:
        """Takes over what an earlier run has left: a daemon that lives, and what went wrong so far."""
        before = self._host.read_status()
        if before is not None and before.uuid == self._uuid:
            self._incidents, self._incident = before.incidents, before.incident
        found = [process.identity for process in self._host.find() if process.control]
        if len(found) == 1:
            (self._daemon,) = found
            _log.info("mps_daemon_adopted", gpu=self._uuid, pid=self._daemon.pid)
            # Its limits are not known for sure: claims wait until they are set again.
            self._publish("starting")
        if before is None or before.daemon in (None, self._daemon) or before.state in ("stopping", "stopped"):
            return
        self._happened("died", "the MPS daemon ended while nobody watched it")

    async def step(self) -> Action:
        """Does the one thing that is to be done next, and returns it. Raises StateError."""
        wanted = self._wanted()
        if wanted is None and self._was_wanted:
            self._try_at_s = self._clock.monotonic_s()  # what has failed before does not delay the end
        self._was_wanted = wanted is not None
        self._look()
        now_s = self._clock.monotonic_s()
        action = decide(
            Seen(
                wanted=wanted,
                daemon=self._daemon,
                limits=self._limits,
                silent=self._silent,
                may_try=now_s >= self._try_at_s,
                probe_due=now_s >= self._probe_at_s,
                settled=self._status is not None and self._status.state == "stopped",
            )
        )
        if action == "start":
            await self._start()
        elif action == "set_limits" and wanted is not None:
            await self._set_limits(wanted)
        elif action == "probe":
            await self._probe()
        elif action == "replace":
            await self._replace()
        elif action == "stop":
            await self._stop()
        return action

    def _wanted(self) -> MpsShare | None:
        members = self._host.members().values()
        return largest([member.share for member in members if member.uuid == self._uuid])

    def _look(self) -> None:
        """Notices what has died."""
        if self._daemon is not None and not self._host.lives(self._daemon):
            output = self._host.output()
            self._forget()
            self._failed("died", f"the MPS daemon died{f': {output}' if output else ''}")
        for pid, identity in list(self._servers.items()):
            if identity is not None and not self._host.lives(identity):
                del self._servers[pid]
                self._server_died(pid)

    async def _start(self) -> None:
        self._publish("starting")
        try:
            await self._end_all()
            self._host.sweep()
            self._daemon = self._host.spawn()
            self._publish("starting")
            await self._until_it_answers(self._daemon)
        except TangramError as error:
            cause = f"{error.cause}; {error.next_step}" if error.next_step else error.cause
            await self._end_quietly()
            self._failed("start_failed", f"the MPS daemon does not start: {cause}")
            return
        _log.info("mps_daemon_started", gpu=self._uuid, pid=self._daemon.pid)
        self._serves_since_s = self._clock.monotonic_s()
        if (wanted := self._wanted()) is not None:
            await self._set_limits(wanted)

    async def _until_it_answers(self, daemon: MpsDaemon) -> None:
        end_s = self._clock.monotonic_s() + START_S
        while self._wanted() is not None:
            try:
                await control.answers(self._host.ask)
            except HardwareError:
                if not self._host.lives(daemon):
                    raise HardwareError(self._host.output() or "it ended at once") from None
                if self._clock.monotonic_s() >= end_s:
                    raise
                await self._clock.sleep(_POLL_S)
            else:
                return

    async def _set_limits(self, wanted: MpsShare) -> None:
        """Before limits sink they are told: a claim that joins now sees that it has to wait."""
        if self._limits is not None and not wanted.covers(self._limits):
            self._limits = MpsShare(
                memory_bytes=min(self._limits.memory_mib, wanted.memory_mib) * MIB,
                cores_percent=min(self._limits.cores_percent, wanted.cores_percent),
            )
            self._publish_serving()
            if self._wanted() != wanted:
                return
        try:
            refusal = await control.set_limits(self._host.ask, wanted)
        except HardwareError as error:
            self._unanswered(error)
            return
        self._silent = 0
        if refusal:
            self._limits = None
            self._failed("limits_refused", f"the MPS daemon does not take its limits: {refusal}")
            return
        self._limits = wanted
        self._publish_serving()
        _log.info(
            "mps_limits_set",
            gpu=self._uuid,
            memory_mib=wanted.memory_mib,
            cores_percent=wanted.cores_percent,
        )

    async def _probe(self) -> None:
        try:
            running = await control.servers(self._host.ask)
            faulted = {pid for pid in running if await control.faulted(self._host.ask, pid)}
        except HardwareError as error:
            self._unanswered(error)
            return
        self._silent = 0
        now_s = self._clock.monotonic_s()
        self._probe_at_s = now_s + PROBE_S
        if now_s - self._serves_since_s >= STABLE_S:
            self._backoff.reset()
        for pid in self._servers.keys() - set(running):
            del self._servers[pid]
            self._server_died(pid)
        for pid in set(running) - self._servers.keys():
            self._servers[pid] = self._host.identify(pid)
        self._note_faults(faulted)
        self._host.trim_logs()
        self._publish_serving()

    async def _replace(self) -> None:
        self._publish("failing", cause="the MPS daemon does not answer")
        await self._end_quietly()
        self._failed("hung", "the MPS daemon did not answer and was ended")

    async def _stop(self) -> None:
        """Told before it is done: a claim that joins at this moment is seen here, or sees it."""
        self._publish("stopping")
        if self._wanted() is not None:
            if self._limits is not None:
                self._publish_serving()
            return
        if self._daemon is not None:
            try:
                await control.quit_daemon(self._host.ask, timeout_s=_QUIT_S)
                await self._until_gone()
            except HardwareError as error:
                _log.warning("mps_quit_failed", gpu=self._uuid, error=error.cause)
        try:
            await self._end_all()
        except HardwareError as error:
            self._try_at_s = self._clock.monotonic_s() + self._backoff.next_s()
            self._publish("stopping", cause=error.cause)
            return
        self._host.sweep()
        self._forget()
        self._backoff.reset()
        self._try_at_s = self._clock.monotonic_s()
        self._publish("stopped")
        _log.info("mps_daemon_stopped", gpu=self._uuid)

    async def _end_quietly(self) -> None:
        """Ends the daemon; one that cannot be ended is met again at the next start."""
        try:
            await self._end_all()
        except TangramError as error:
            _log.error("mps_process_cannot_be_ended", gpu=self._uuid, error=error.cause)
        self._forget()

    async def _end_all(self) -> None:
        """Kills every process of the daemon. HardwareError if one is still there after a while."""
        for process in self._host.find():
            self._host.kill(process.identity)
        if survivors := await self._until_gone():
            pids = ", ".join(str(process.identity.pid) for process in survivors)
            raise HardwareError(
                f"processes {pids} of the MPS daemon cannot be ended: they hang in the GPU driver",
                next_step="look at the kernel log for the GPU driver; the node may need a reboot",
            )

    async def _until_gone(self) -> list[MpsProcess]:
        """Waits until no process of the daemon is left; those that are, after a while."""
        end_s = self._clock.monotonic_s() + END_S
        while (left := self._host.find()) and self._clock.monotonic_s() < end_s:
            await self._clock.sleep(_POLL_S)
        return left

    def _forget(self) -> None:
        self._daemon = self._limits = None
        self._servers.clear()
        self._faulted.clear()
        self._silent = 0

    def _unanswered(self, error: TangramError) -> None:
        self._silent += 1
        _log.warning("mps_command_failed", gpu=self._uuid, error=error.cause, in_a_row=self._silent)

    def _server_died(self, pid: int) -> None:
        self._happened("server_died", f"the MPS server {pid} died; CUDA processes that used it have failed")
        self._faulted.discard(pid)
        self._probe_at_s = self._clock.monotonic_s()
        if self._limits is not None:
            self._publish_serving()

    def _note_faults(self, faulted: set[int]) -> None:
        for pid in sorted(faulted - self._faulted):
            self._happened(
                "server_faulted",
                f"a fatal exception of the GPU ended the work of all CUDA processes of MPS server {pid}",
            )
        self._faulted = faulted

    def _failed(self, kind: IncidentKind, cause: str) -> None:
        self._try_at_s = self._clock.monotonic_s() + self._backoff.next_s()
        self._happened(kind, cause)
        self._publish("failing", cause=cause)

    def _happened(self, kind: IncidentKind, cause: str) -> None:
        self._incidents += 1
        self._incident = MpsIncident(kind=kind, cause=cause, time=rfc3339(self._clock.now()))
        _log.error("mps_incident", gpu=self._uuid, kind=kind, cause=cause)

    def _publish_serving(self) -> None:
        """With limits set: claims may start, unless a server refuses their processes."""
        if not self._faulted:
            self._publish("ready")
            return
        pids = ", ".join(map(str, sorted(self._faulted)))
        self._publish(
            "failing",
            cause=f"MPS server {pids} takes no CUDA process after a fatal exception of the GPU, until all"
            " that used it then have ended",
        )

    def _publish(self, state: MpsState, *, cause: str = "") -> None:
        status = MpsStatus(
            uuid=self._uuid,
            state=state,
            keeper=self._keeper,
            limits=self._limits,
            cause=cause,
            daemon=self._daemon,
            servers=tuple(sorted(self._servers)),
            incidents=self._incidents,
            incident=self._incident,
        )
        if status != self._status:
            self._host.write_status(status)
            self._status = status
