"""How much of a shared GPU a claim takes: what it asks for, and what it gets where it does not say. Pure."""

from dataclasses import dataclass

from tangram.model.devices import Kind
from tangram.model.publishing import FULL_CORES, MEBIBYTE, default_cores, default_share_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedShare:
    """What a claim states; None: the default. `cores` in percent of the multiprocessors; `replicas`: among
    how many claims of its size the GPU is shared.
    """

    memory_bytes: int | None = None
    cores: int | None = None
    replicas: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a claim takes of a GPU, in units of the capacities `memory`, `cores` and `replicas`; 0: of what is
    not divided on this GPU or by this kind.
    """

    memory_bytes: int = 0
    cores: int = 0
    replicas: int = 0


def share(kind: Kind, wanted: WantedShare, *, gpu_memory_bytes: int | None, replicas: int) -> Share:
    """The share of a GPU with so much memory, divided into so many `replicas`, for `mps` or `timeslice`.

    Memory is rounded up to MiB. A claim that wants the GPU shared by fewer than there are replicas gets more
    of them.
    """
    units = -(-replicas // wanted.replicas) if wanted.replicas else 1
    memory = 0
    if gpu_memory_bytes is not None:
        memory = wanted.memory_bytes or units * default_share_bytes(gpu_memory_bytes, replicas=replicas)
    memory += -memory % MEBIBYTE
    if kind == "mps":
        return Share(memory_bytes=memory, cores=wanted.cores or default_cores(replicas))
    return Share(memory_bytes=memory, replicas=units)


def excess(taken: Share, *, gpu_memory_bytes: int | None, replicas: int) -> str:
    """Why so much, all shares of a GPU together, is more than it has; empty if it is not."""
    if gpu_memory_bytes is not None and taken.memory_bytes > gpu_memory_bytes:
        have = gpu_memory_bytes // MEBIBYTE
        return f"{taken.memory_bytes // MEBIBYTE}Mi of its {have}Mi memory"
    if taken.cores > FULL_CORES:
        return f"{taken.cores} percent of its multiprocessors"
    if taken.replicas > replicas:
        return f"{taken.replicas} of its {replicas} replicas"
    return ""


def total(shares: list[Share]) -> Share:
    """All of them together."""
    return Share(
        memory_bytes=sum(each.memory_bytes for each in shares),
        cores=sum(each.cores for each in shares),
        replicas=sum(each.replicas for each in shares),
    )
