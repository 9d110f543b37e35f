"""The control interface of one MPS daemon (v2): commands in, their answers read with suspicion.

Commands and answers: docs.nvidia.com/deploy/mps, "Legacy MPS v2 Interface". A limit of memory is set by the
index of the GPU under the daemon's CUDA_VISIBLE_DEVICES, always 0 here: by UUID it is accepted and ignored.
"""

import re
from collections.abc import Awaitable, Callable

from tangram.base.errors import HardwareError, HardwareTimeoutError
from tangram.hardware.mps.values import MIB, MpsShare

DEVICE = 0
_MAXIMUM_PIDS = 1024
_PERCENT = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%?\s*")
_MEMORY = re.compile(r"(?:.*[:=\s])?([0-9]{1,15})\s*([KMGT]?)i?B?\s*", re.IGNORECASE)
_PID = re.compile(r"\s*([1-9][0-9]{0,9})\s*")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

Ask = Callable[[str], Awaitable[str]]
"""Sends commands, one a line, and returns what the daemon printed. Raises HardwareError."""


async def answers(ask: Ask) -> None:
    """Returns if the daemon answers as one of its kind does. Raises HardwareError."""
    text = await ask("get_default_active_thread_percentage")
    if _percent(text) is None:
        raise HardwareError(f"the MPS daemon answers {_shown(text)} where a percentage was asked for")


async def servers(ask: Ask) -> tuple[int, ...]:
    """The pids of the daemon's servers; none before the first client comes. Raises HardwareError."""
    return _pids(await ask("get_server_list"))


async def clients(ask: Ask, server: int) -> tuple[int, ...]:
    """The pids of a server's clients. Raises HardwareError."""
    return _pids(await ask(f"get_client_list {server}"))


async def faulted(ask: Ask, server: int) -> bool:
    """Whether a server has met a fatal exception of the GPU: its clients have failed, and it refuses new ones
    until the last of them has ended. A program that does not tell, or refuses to, knows of none. Raises
    HardwareTimeoutError.
    """
    try:
        text = await ask(f"get_server_status {server}")
    except HardwareTimeoutError:
        raise
    except HardwareError:
        return False  # it has no such command, or the server has just ended
    return "FAULT" in text.upper().split()


async def set_limits(ask: Ask, limits: MpsShare) -> str:
    """Sets what clients get at most and reads it back; where the daemon did not take it: why, else empty.

    Defaults hold for servers that start later, so those that run are told too; clients that are connected
    keep what they have. Raises HardwareError.
    """
    running = await _set(ask, limits)
    for default, server in (("default_", ""), *(("", f" {pid}") for pid in running)):
        text = await ask(
            f"get_{default}active_thread_percentage{server}\n"
            f"get_{default}device_pinned_mem_limit{server} {DEVICE}"
        )
        percent = _percent(text)
        if percent is None or abs(percent - limits.cores_percent) > 0.5:
            return f"set to {limits.cores_percent} percent of the multiprocessors, MPS reports {_shown(text)}"
        if not _is_memory(text, limits.memory_mib * MIB):
            return f"set to {limits.memory_mib} MiB of memory, MPS reports {_shown(text)}"
    return ""


async def quit_daemon(ask: Ask, *, timeout_s: int) -> None:
    """Ends the daemon and its servers once clients are gone, or after the time. Raises HardwareError."""
    await ask(f"quit -t {timeout_s}")


async def _set(ask: Ask, limits: MpsShare) -> tuple[int, ...]:
    """Sets the limits; returns the servers that were told."""
    await ask(
        f"set_default_active_thread_percentage {limits.cores_percent}\n"
        f"set_default_device_pinned_mem_limit {DEVICE} {limits.memory_mib}M"
    )
    # Asked for only now: a server that starts meanwhile has the new defaults already.
    running = await servers(ask)
    for server in running:
        await ask(
            f"set_active_thread_percentage {server} {limits.cores_percent}\n"
            f"set_device_pinned_mem_limit {server} {DEVICE} {limits.memory_mib}M"
        )
    return running


def _percent(text: str) -> float | None:
    found = [match for line in text.splitlines() if (match := _PERCENT.fullmatch(line))]
    return float(found[0][1]) if found else None


def _is_memory(text: str, wanted_bytes: int) -> bool:
    """Whether this reports so many bytes; `3G` may stand for 3,500 MiB, as no fraction is printed."""
    found = [match for line in text.splitlines() if (match := _MEMORY.fullmatch(line))]
    if not found:
        return False
    value, unit = int(found[-1][1]), _UNITS[found[-1][2].upper()]
    return value > 0 and wanted_bytes // unit == value


def _pids(text: str) -> tuple[int, ...]:
    found = [int(match[1]) for line in text.splitlines() if (match := _PID.fullmatch(line))]
    return tuple(sorted(set(found[:_MAXIMUM_PIDS])))


def _shown(text: str) -> str:
    return repr(text.strip()[:80])
