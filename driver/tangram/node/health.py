"""The health of this node's GPUs: looked at with each scan, and listened for in between."""

import asyncio
from collections.abc import Iterable

from tangram.base.errors import GpuLostError, HardwareError, HardwareTimeoutError
from tangram.base.logs import get_logger
from tangram.hardware.health import Finding, GpuConditions, HealthRecord, Severity, XidEvent
from tangram.hardware.workers import Workers
from tangram.model.gpu import GpuUuid, Machine

_log = get_logger("node")


class HealthBook:
    """What is known of each GPU's health. One GPU that does not answer, or tells nothing, costs no other."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._records: dict[GpuUuid, HealthRecord] = {}

    async def look(self, machine: Machine) -> None:
        """Asks every GPU how it is. Raises nothing."""
        gone = self._records.keys() - {gpu.uuid for gpu in machine.gpus}
        for uuid in gone:
            if uuid in machine.failures:
                self._records[uuid] = self._records[uuid].after_loss()
            else:
                del self._records[uuid]
        await asyncio.gather(*(self._look_at(gpu.uuid) for gpu in machine.gpus))

    async def _look_at(self, uuid: GpuUuid) -> None:
        conditions: GpuConditions | None = None
        lost = False
        try:
            conditions = await self._workers.health(uuid)
        except (GpuLostError, HardwareTimeoutError):
            lost = True
        except HardwareError as error:
            # What it does not tell is no illness: the look at the GPU itself has gone well.
            _log.debug("gpu_health_unknown", gpu=uuid, error=error.cause)
        # Only now: an event may have come meanwhile.
        record = self._records.get(uuid, HealthRecord())
        if lost:
            record = record.after_loss()
        elif conditions is not None:
            record = record.after_look(conditions)
        self._records[uuid] = record

    def note(self, event: XidEvent) -> None:
        """An XID error was reported."""
        before = self._records.get(event.uuid, HealthRecord())
        self._records[event.uuid] = before.after_xid(event)
        if self._records[event.uuid] != before:
            _log.error("gpu_xid", gpu=event.uuid, xid=event.xid, gpu_instance=event.gpu_instance_id)

    def unhealthy(self) -> dict[GpuUuid, str]:
        """GPUs that nobody new must get, with the cause."""
        return self._told(Severity.FATAL)

    def warnings(self) -> dict[GpuUuid, str]:
        """GPUs that work and should be looked at, with the cause."""
        return self._told(Severity.WARNING)

    def _told(self, severity: Severity) -> dict[GpuUuid, str]:
        texts = {uuid: _text(record.findings, severity) for uuid, record in self._records.items()}
        return {uuid: text for uuid, text in texts.items() if text}


def _text(findings: Iterable[Finding], severity: Severity) -> str:
    return "; ".join(finding.text for finding in findings if finding.severity == severity)
