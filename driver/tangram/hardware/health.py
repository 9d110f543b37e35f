"""How well a GPU is: what it tells, what is concluded from it, and how long a conclusion holds. Pure.

Terms as in the NVML API reference and NVIDIA's document of XID errors. The severities are a table in
docs/hardware.md.
"""

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Literal

from tangram.model.gpu import GpuUuid


class Severity(IntEnum):
    """`FATAL`: nobody new gets the GPU. `WARNING`: it works, and somebody should look at it."""

    NONE = 0
    WARNING = 1
    FATAL = 2


RecoveryAction = Literal[
    "none",
    "gpu_reset",
    "node_reboot",
    "drain_p2p",
    "drain_and_reset",
    "recover_imex",
    "bus_reset",
    "system_reboot",
]
"""What the driver asks for to mend a GPU (NVML_FI_DEV_GET_GPU_RECOVERY_ACTION), in NVML's order."""
Slowdown = Literal["hardware", "thermal", "power_brake"]
"""Why the hardware itself slows the clocks: for any reason, for heat, for an external brake of power."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuConditions:
    """What a GPU tells of itself; None where board or driver does not tell.

    `uncorrectable_ecc_errors` counts since driver load or reset. `active_nvlinks`: links up.
    """

    uncorrectable_ecc_errors: int | None = None
    row_remap_pending: bool | None = None
    row_remap_failed: bool | None = None
    retired_pages_pending: bool | None = None
    recovery_action: RecoveryAction | None = None
    active_nvlinks: int | None = None
    slowdowns: frozenset[Slowdown] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class XidEvent:
    """An XID error that the driver reported. The ids name the MIG instance it was on, where there is one."""

    uuid: GpuUuid
    xid: int
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is not as it should be. `code` is short and stable, `text` says it in words."""

    code: str
    severity: Severity
    text: str


XIDS: dict[int, tuple[Severity, str]] = {
    13: (Severity.NONE, "graphics engine exception: by the program"),
    31: (Severity.NONE, "memory page fault: by the program"),
    43: (Severity.NONE, "GPU stopped processing: by the program"),
    45: (Severity.NONE, "work removed after the program ended or failed"),
    48: (Severity.FATAL, "uncorrectable (double bit) memory error"),
    61: (Severity.FATAL, "internal microcontroller breakpoint"),
    62: (Severity.FATAL, "internal microcontroller halt"),
    63: (Severity.WARNING, "memory row remapping, or page retirement, recorded"),
    64: (Severity.FATAL, "memory row remapping, or page retirement, failed"),
    68: (Severity.NONE, "video processor exception: by the program"),
    74: (Severity.FATAL, "NVLink error"),
    79: (Severity.FATAL, "GPU has fallen off the bus"),
    92: (Severity.WARNING, "many correctable memory errors"),
    94: (Severity.WARNING, "uncorrectable memory error, contained in the program it hit"),
    95: (Severity.FATAL, "uncorrectable memory error, not contained"),
    109: (Severity.NONE, "context switch timeout: by the program"),
    119: (Severity.FATAL, "GPU system processor (GSP) does not answer"),
    120: (Severity.FATAL, "GPU system processor (GSP) error"),
    121: (Severity.WARNING, "corrected error on the link between CPU and GPU"),
    140: (Severity.FATAL, "unrecovered memory error"),
    154: (Severity.NONE, "recovery action changed: the action itself is looked at"),
}
"""What an XID means for whoever gets the GPU next. One that is not listed is fatal: better one GPU less."""


def of_xid(xid: int) -> Finding:
    """The finding of an XID error."""
    severity, text = XIDS.get(xid, (Severity.FATAL, "unknown error"))
    return Finding(code=f"xid-{xid}", severity=severity, text=f"XID {xid}: {text}")


LOST = Finding(code="lost", severity=Severity.FATAL, text="the GPU does not answer")


def of_conditions(conditions: GpuConditions, *, expected_nvlinks: int) -> tuple[Finding, ...]:
    """The findings of what a GPU tells now. `expected_nvlinks`: as many links were up before."""
    found = []
    if conditions.uncorrectable_ecc_errors:
        count = conditions.uncorrectable_ecc_errors
        found.append(_warning("ecc", f"{count} uncorrectable memory errors since the last reset"))
    if conditions.row_remap_failed:
        found.append(_fatal("row-remap-failed", "a memory row could not be remapped: replace the GPU"))
    if conditions.row_remap_pending:
        found.append(_warning("row-remap-pending", "memory rows are remapped at the next reset"))
    if conditions.retired_pages_pending:
        found.append(_warning("retired-pages-pending", "memory pages are retired at the next reset"))
    action = conditions.recovery_action
    if action is not None and action != "none":
        severity = Severity.WARNING if action == "recover_imex" else Severity.FATAL
        text = f"the driver asks for a recovery: {action.replace('_', ' ')}"
        found.append(Finding(code=f"recovery-{action.replace('_', '-')}", severity=severity, text=text))
    if conditions.active_nvlinks is not None and conditions.active_nvlinks < expected_nvlinks:
        down = expected_nvlinks - conditions.active_nvlinks
        found.append(_warning("nvlink-down", f"{down} of {expected_nvlinks} NVLinks are down"))
    if conditions.slowdowns:
        why = ", ".join(sorted(reason.replace("_", " ") for reason in conditions.slowdowns))
        found.append(_warning("slowdown", f"the hardware slows the clocks: {why}"))
    return tuple(found)


def _warning(code: str, text: str) -> Finding:
    return Finding(code=code, severity=Severity.WARNING, text=text)


def _fatal(code: str, text: str) -> Finding:
    return Finding(code=code, severity=Severity.FATAL, text=text)


@dataclass(frozen=True, slots=True)
class HealthRecord:
    """What is known of one GPU's health. Events add to it, and only a reset of the GPU takes them away.

    A reset shows in that the GPU answers again after it did not, that the driver asks for no recovery any
    more, or that the count of memory errors, which a reset clears, has fallen.
    """

    events: tuple[Finding, ...] = ()
    conditions: GpuConditions | None = None
    expected_nvlinks: int = 0
    lost: bool = False

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All that is wrong, the worst first."""
        found = [LOST] if self.lost else []
        found += self.events
        if self.conditions is not None:
            found += of_conditions(self.conditions, expected_nvlinks=self.expected_nvlinks)
        return tuple(sorted(found, key=lambda finding: (-finding.severity, finding.code)))

    @property
    def severity(self) -> Severity:
        """Of the worst finding."""
        return max((finding.severity for finding in self.findings), default=Severity.NONE)

    def after_xid(self, event: XidEvent) -> "HealthRecord":
        """An event came. One that means nothing for others is not kept."""
        finding = of_xid(event.xid)
        if finding.severity == Severity.NONE or finding in self.events:
            return self
        return replace(self, events=(*self.events, finding))

    def after_look(self, conditions: GpuConditions) -> "HealthRecord":
        """The GPU answered, and told this."""
        reset = self.lost or _was_reset(self.conditions, conditions)
        return HealthRecord(
            events=() if reset else self.events,
            conditions=conditions,
            expected_nvlinks=max(self.expected_nvlinks, conditions.active_nvlinks or 0),
        )

    def after_loss(self) -> "HealthRecord":
        """The GPU did not answer."""
        return replace(self, lost=True, conditions=None)


def _was_reset(before: GpuConditions | None, now: GpuConditions) -> bool:
    if before is None:
        return False
    recovered = before.recovery_action not in (None, "none") and now.recovery_action == "none"
    fewer = (now.uncorrectable_ecc_errors or 0) < (before.uncorrectable_ecc_errors or 0)
    return recovered or (fewer and now.uncorrectable_ecc_errors is not None)
