"""Product names: from `NVIDIA A100-SXM4-80GB` to the short type `A100` and the nominal size 80 GB."""

import re

_VENDOR_WORDS = frozenset({"NVIDIA", "TESLA", "GEFORCE", "QUADRO", "GRID", "GRAPHICS", "DEVICE"})
_SERIES = frozenset({"RTX", "GTX", "TITAN", "CMP", "PRO"})
"""Words that name a model only together with the next one."""
_VARIANTS = frozenset({"TI", "SUPER", "SFF", "ADA", "D"})
"""Words after the model of a series that make it another product."""
_NOMINAL_GB = re.compile(r"(?<![0-9])([0-9]{1,4})\s?GB(?![0-9a-z])", re.IGNORECASE)
_SOLD_GB = (
    *(1, 2, 3, 4, 5, 6, 8, 10, 11, 12, 16, 20, 22, 24, 32, 40, 48, 64, 72, 80, 94, 96),
    *(128, 141, 144, 180, 186, 192, 288),
)
_SMALLEST_SHARE = 0.92
"""What NVML reports of a product's size at least: boards with GDDR memory give 1/16 of it to ECC."""


def gpu_type(product_name: str) -> str:
    """The short name people use: the first word that is not the vendor's, up to its first dash.

    `NVIDIA A100-SXM4-80GB` → `A100`, `Tesla T4` → `T4`, `Orin (nvgpu)` → `Orin`. Where that word only names a
    series, the model and its variant follow, joined by dashes: `NVIDIA RTX 6000 Ada Generation` →
    `RTX-6000-Ada`, `NVIDIA RTX PRO 6000 Blackwell Server Edition` → `RTX-PRO-6000`.
    """
    words = [word for word in product_name.split() if word.upper() not in _VENDOR_WORDS]
    if not words:
        return "unknown"
    model: list[str] = []
    while words and words[0].upper() in _SERIES:
        model.append(words.pop(0))
    if not model:
        return words[0].split("-")[0] or "unknown"
    if words:
        model.append(words.pop(0))
    while words and words[0].upper() in _VARIANTS:
        model.append(words.pop(0))
    return "-".join(model)


def product_words(name: str) -> tuple[str, ...]:
    """The words of a product name in upper case, without the vendor's: for comparing what people write.

    `NVIDIA A100-SXM4-80GB` → A100, SXM4, 80GB.
    """
    words = (word for word in re.split(r"[\s_-]+", name.upper()) if word)
    return tuple(word for word in words if word not in _VENDOR_WORDS)


def nominal_gigabytes(product_name: str, memory_bytes: int | None) -> int:
    """The size the product is sold by, in GB; 0 where nothing is known.

    `memory_bytes` is NVML's total. The number in the name counts unless it contradicts the memory (`NVIDIA
    GH200 480GB` names the memory of its CPU). Without one it is the sold size that the total falls short of
    by a few percent at most (a T4 of 16 GB reports 15 GiB), else the total rounded up to whole GiB.
    """
    match = _NOMINAL_GB.search(product_name)
    named = int(match[1]) if match else 0
    if memory_bytes is None:
        return named
    gib = memory_bytes / 2**30
    if gib * 0.98 <= named and named * _SMALLEST_SHARE <= gib:
        return named
    sold = next((size for size in _SOLD_GB if size >= gib), 0)
    return sold if sold * _SMALLEST_SHARE <= gib and sold else -(-memory_bytes // 2**30)
