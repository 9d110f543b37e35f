"""What GPUClaimParameters mean for allocation: terms over plain facts of a device."""

import re
from dataclasses import dataclass
from typing import Literal

from tangram.model.product import product_words
from tangram.model.quantity import human_bytes

Sharing = Literal["exclusive", "mig", "mps", "timeSlice"]
"""How a device is used: a whole GPU, a MIG instance, or a share of a GPU."""

_SIZE = re.compile(r"(\d{1,4})GB", re.ASCII)
_GIGABYTE = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """What a demand looks at. `memory_bytes` is None where unknown, `nominal_gb` 0."""

    memory_bytes: int | None
    nominal_gb: int
    gpu_type: str
    product_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuType:
    """A wanted model: a family such as `H100`, more words of the product name, a nominal size, as written."""

    text: str
    words: tuple[str, ...]
    nominal_gb: int | None

    @classmethod
    def parse(cls, text: str) -> "GpuType":
        """`H100`, `H100-80GB`, `A100-SXM4-80GB`, `NVIDIA H100 80GB HBM3`; letter case does not matter.

        Raises ValueError for a text that names no model.
        """
        words = product_words(text)
        size = _SIZE.fullmatch(words[-1]) if words else None
        named = words[:-1] if size else words
        if not named:
            raise ValueError(f"{text!r} names no GPU model")
        return cls(text=text, words=named, nominal_gb=int(size[1]) if size else None)

    def matches(self, facts: DeviceFacts) -> bool:
        """True for the family, or for the beginning of the product name; a size must be the nominal one."""
        family = product_words(facts.gpu_type)
        product = product_words(facts.product_name)
        length = len(self.words)
        named = self.words == family or (
            self.words[: len(family)] == family and self.words == product[:length]
        )
        return named and self.nominal_gb in (None, facts.nominal_gb)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a request asks of each device, and of its devices together.

    `linked_set_size`: the devices form fully linked sets of this many GPUs; a request for fewer devices gets
    this many. Allocation applies it; `accepts` judges one device alone.
    """

    memory_gb: int | None = None
    gpu_type: GpuType | None = None
    linked_set_size: int = 1
    sharing: Sharing = "exclusive"

    def accepts(self, facts: DeviceFacts) -> str | None:
        """None, or why the device does not do, in words that read well after a count of devices:
        `8 of type A100, not H100`."""
        if self.gpu_type is not None and not self.gpu_type.matches(facts):
            found = f"type {facts.gpu_type}" if facts.gpu_type else "unknown type"
            if self.gpu_type.nominal_gb is not None and facts.nominal_gb:
                found += f" {facts.nominal_gb}GB"
            return f"of {found}, not {self.gpu_type.text}"
        if self.memory_gb is not None and not _has_memory(facts, self.memory_gb):
            if facts.memory_bytes is None:
                return f"of unknown memory, where {self.memory_gb} GB is needed"
            return f"with {human_bytes(facts.memory_bytes)} memory, less than {self.memory_gb} GB"
        return None


def _has_memory(facts: DeviceFacts, memory_gb: int) -> bool:
    # Nominal sizes count as well: a GPU sold as 80 GB may report a little less than 80·10⁹ bytes.
    return facts.nominal_gb >= memory_gb or (
        facts.memory_bytes is not None and facts.memory_bytes >= memory_gb * _GIGABYTE
    )
