"""What GPUClaimParameters mean for allocation: terms over plain facts of a device."""

import re
from dataclasses import dataclass, field
from typing import Literal

from tangram.model.devices import Kind
from tangram.model.product import nominal_gigabytes, product_words
from tangram.model.quantity import human_bytes
from tangram.model.shares import WantedShare

Sharing = Literal["exclusive", "mig", "mps", "timeSlice"]
"""How a device is used: a whole GPU, a MIG instance, or a share of a GPU."""

_SIZE = re.compile(r"(\d{1,4})GB", re.ASCII)
_PROFILE_SIZE = re.compile(r"\.(\d{1,4})gb", re.ASCII)
_GIGABYTE = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """What a demand looks at; where it is unknown `memory_bytes` is None and `nominal_gb` 0."""

    memory_bytes: int | None
    nominal_gb: int
    gpu_type: str
    product_name: str
    kind: str = "gpu"
    profile: str = ""

    @classmethod
    def of(
        cls,
        *,
        kind: str,
        product_name: str,
        gpu_type: str,
        memory_bytes: int | None,
        profile: str = "",
    ) -> "DeviceFacts":
        """Of a device with these attributes and this capacity. A MIG device is as large as its profile says,
        not as the board it is cut from."""
        sold = _PROFILE_SIZE.search(profile)
        nominal_gb = int(sold[1]) if sold else nominal_gigabytes(product_name, memory_bytes)
        if kind == "mig" and not sold:
            nominal_gb = 0
        return cls(
            memory_bytes=memory_bytes,
            nominal_gb=nominal_gb,
            gpu_type=gpu_type,
            product_name=product_name,
            kind=kind,
            profile=profile,
        )


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
    this many. Allocation applies it; `accepts` judges one device alone. `kinds` that will do, None for any;
    `share`: how much of a shared GPU each device is to be.
    """

    memory_gb: int | None = None
    gpu_type: GpuType | None = None
    linked_set_size: int = 1
    sharing: Sharing = "exclusive"
    kinds: frozenset[Kind] | None = None
    mig_profile: str | None = None
    share: WantedShare = field(default_factory=WantedShare)

    def accepts(self, facts: DeviceFacts) -> str | None:
        """None, or why the device does not do, in words that read well after a count of devices:
        `8 of type A100, not H100`."""
        if self.kinds is not None and facts.kind not in self.kinds:
            return f"of kind {facts.kind}, not {' or '.join(sorted(self.kinds))}"
        if self.mig_profile is not None and facts.profile.lower() != self.mig_profile:
            return f"of MIG profile {facts.profile or 'none'}, not {self.mig_profile}"
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
