"""What the MPS of a driver can do, and what that means for `isolation`.

Version 3 of MPS (driver r615) has namespaces whose limits hold for all processes in them; NVML of the same
drivers limits the memory of a cgroup. Both would make `isolation: limit` true. This version of Tangram drives
neither yet: it finds out whether they are there, and refuses to pretend.
"""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from tangram.base.errors import HardwareError, NotSupportedError

Enforcer = Literal["client-environment", "mps-namespace", "memory-cgroup"]
"""What holds a claim to its share: variables of its own processes, MPS v3, NVML's limits of cgroups."""

_PROTOCOL = re.compile(r"(?:-p\b|--protocol\b).*\b3\b")
_NAMES = {"mps-namespace": "MPS v3 namespaces", "memory-cgroup": "NVML memory limits of cgroups"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsFeatures:
    """Versions of the control interface, and whether NVML has nvmlDeviceSetMemoryLimits_v1."""

    protocols: frozenset[int] = frozenset({2})
    memory_limits: bool = False

    @property
    def enforcers(self) -> tuple[Enforcer, ...]:
        """What this driver could enforce shares by, the strongest first."""
        found: list[Enforcer] = []
        if self.memory_limits:
            found.append("memory-cgroup")
        if 3 in self.protocols:
            found.append("mps-namespace")
        return (*found, "client-environment")


async def find_protocols(help_text: Callable[[tuple[str, ...]], Awaitable[str]]) -> frozenset[int]:
    """The versions of the control interface; `help_text` runs the control program with these arguments.

    A program that knows no version 3 fails, or shows a help that names none.
    """
    try:
        text = await help_text(("-p", "3", "-h"))
    except HardwareError:
        return frozenset({2})
    return frozenset({2, 3}) if any(_PROTOCOL.search(line) for line in text.splitlines()) else frozenset({2})


def isolation(enforcer: Enforcer) -> Literal["none", "limit"]:
    """The attribute `isolation` of a share: `none` where a process can lift its own limits."""
    return "none" if enforcer == "client-environment" else "limit"


def choose_enforcer(features: MpsFeatures, wanted: Enforcer = "client-environment") -> Enforcer:
    """What shares are enforced by. Raises NotSupportedError, by name, for what cannot be had."""
    if wanted == "client-environment":
        return wanted
    if wanted not in features.enforcers:
        raise NotSupportedError(
            f"this GPU driver has no {_NAMES[wanted]}", next_step="update to a driver of r615 or later"
        )
    raise NotSupportedError(
        f"{_NAMES[wanted]} are there, but this version of Tangram does not use them yet",
        next_step="take client-environment, whose limits a process can lift",
    )
