"""Product names: from `NVIDIA A100-SXM4-80GB` to the short type `A100` and the nominal size 80 GB."""

import re

_VENDOR_WORDS = {"NVIDIA", "TESLA", "GEFORCE", "QUADRO", "GRAPHICS", "DEVICE"}
_NOMINAL_GB = re.compile(r"(?<![0-9])(\d{1,4})\s?GB(?![0-9a-z])", re.IGNORECASE)


def gpu_type(product_name: str) -> str:
    """The model family: the first word of the product name that is not the vendor's, up to its first dash.

    `NVIDIA A100-SXM4-80GB` → `A100`, `NVIDIA H100 80GB HBM3` → `H100`, `Tesla T4` → `T4`,
    `NVIDIA RTX PRO 6000 Blackwell` → `RTX-PRO-6000`.
    """
    words = [word for word in product_name.split() if word.upper() not in _VENDOR_WORDS]
    if not words:
        return "unknown"
    if words[0].upper() != "RTX":
        return words[0].split("-")[0]
    model = ["RTX"]
    for word in words[1:]:
        model.append(word)
        if any(character.isdigit() for character in word):
            break
    return "-".join(model)


def product_words(name: str) -> tuple[str, ...]:
    """The words of a product name in upper case, without the vendor's: for comparing what people write.

    `NVIDIA A100-SXM4-80GB` → A100, SXM4, 80GB.
    """
    words = (word for word in re.split(r"[\s_-]+", name.upper()) if word)
    return tuple(word for word in words if word not in _VENDOR_WORDS)


def nominal_gigabytes(product_name: str, memory_bytes: int | None) -> int:
    """The size the product is sold by, in GB: from its name, else NVML's total rounded up to whole GiB.

    0 where neither is known.
    """
    if match := _NOMINAL_GB.search(product_name):
        return int(match[1])
    if memory_bytes is None:
        return 0
    return -(-memory_bytes // 2**30)
