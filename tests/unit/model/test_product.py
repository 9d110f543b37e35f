"""Short types and nominal sizes, against names as NVML prints them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.model.product import gpu_type, nominal_gigabytes

# (name, NVML's total in MiB or None, type, GB). Totals as nvidia-smi shows them on such boards.
PRODUCTS = [
    ("NVIDIA A100-SXM4-40GB", 40960, "A100", 40),
    ("A100-SXM4-40GB", 40537, "A100", 40),
    ("NVIDIA A100-SXM4-80GB", 81920, "A100", 80),
    ("NVIDIA A100 80GB PCIe", 81920, "A100", 80),
    ("NVIDIA A100-PCIE-40GB", 40960, "A100", 40),
    ("NVIDIA A800-SXM4-80GB", 81920, "A800", 80),
    ("NVIDIA H100 80GB HBM3", 81559, "H100", 80),
    ("NVIDIA H100 PCIe", 81559, "H100", 80),
    ("NVIDIA H100 NVL", 95830, "H100", 94),
    ("NVIDIA H800", 81559, "H800", 80),
    ("NVIDIA H20", 97871, "H20", 96),
    ("NVIDIA H200", 143771, "H200", 141),
    ("NVIDIA H200 NVL", 143771, "H200", 141),
    ("NVIDIA GH200 480GB", 97871, "GH200", 96),
    ("NVIDIA GH200 144G HBM3e", 146831, "GH200", 144),
    ("NVIDIA B200", 183359, "B200", 180),
    ("NVIDIA GB200", 189471, "GB200", 186),
    ("NVIDIA B300 SXM6 AC", 275040, "B300", 288),
    ("NVIDIA GB300", 284208, "GB300", 288),
    ("NVIDIA GB10", None, "GB10", 0),
    ("NVIDIA L4", 23034, "L4", 24),
    ("NVIDIA L40", 46068, "L40", 48),
    ("NVIDIA L40S", 46068, "L40S", 48),
    ("NVIDIA A10", 23028, "A10", 24),
    ("NVIDIA A10G", 23028, "A10G", 24),
    ("NVIDIA A16", 15356, "A16", 16),
    ("NVIDIA A2", 15356, "A2", 16),
    ("NVIDIA A30", 24576, "A30", 24),
    ("NVIDIA A40", 46068, "A40", 48),
    ("NVIDIA A100X", 81920, "A100X", 80),
    ("Tesla T4", 15360, "T4", 16),
    ("Tesla T4", 15109, "T4", 16),
    ("Tesla V100-SXM2-16GB", 16384, "V100", 16),
    ("Tesla V100-SXM2-16GB", 16160, "V100", 16),
    ("Tesla V100-SXM2-32GB", 32768, "V100", 32),
    ("Tesla V100-DGXS-32GB", 32505, "V100", 32),
    ("Tesla V100S-PCIE-32GB", 32510, "V100S", 32),
    ("Tesla P100-PCIE-16GB", 16384, "P100", 16),
    ("Tesla P40", 22919, "P40", 24),
    ("Tesla P4", 7611, "P4", 8),
    ("Tesla K80", 11441, "K80", 12),
    ("Tesla M40 24GB", 22945, "M40", 24),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, "RTX-PRO-6000", 96),
    ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 97887, "RTX-PRO-6000", 96),
    ("NVIDIA RTX PRO 4500 Blackwell", 32623, "RTX-PRO-4500", 32),
    ("NVIDIA RTX PRO 5000 72GB Blackwell", 73415, "RTX-PRO-5000", 72),
    ("NVIDIA RTX A6000", 49140, "RTX-A6000", 48),
    ("NVIDIA RTX A6000", 46068, "RTX-A6000", 48),
    ("NVIDIA RTX A2000 12GB", 12282, "RTX-A2000", 12),
    ("NVIDIA RTX 6000 Ada Generation", 49140, "RTX-6000-Ada", 48),
    ("NVIDIA RTX 4000 SFF Ada Generation", 20475, "RTX-4000-SFF-Ada", 20),
    ("Quadro RTX 6000", 24576, "RTX-6000", 24),
    ("Quadro P4000", 8119, "P4000", 8),
    ("NVIDIA T400 4GB", 4096, "T400", 4),
    ("NVIDIA GeForce RTX 4090", 24564, "RTX-4090", 24),
    ("NVIDIA GeForce RTX 4090 D", 24564, "RTX-4090-D", 24),
    ("NVIDIA GeForce RTX 5090", 32607, "RTX-5090", 32),
    ("NVIDIA GeForce RTX 4080 SUPER", 16376, "RTX-4080-SUPER", 16),
    ("NVIDIA GeForce RTX 3080 Ti Laptop GPU", 16384, "RTX-3080-Ti", 16),
    ("NVIDIA GeForce RTX 3080", 10240, "RTX-3080", 10),
    ("NVIDIA GeForce RTX 2080 Ti", 11264, "RTX-2080-Ti", 11),
    ("NVIDIA GeForce GTX 1080 Ti", 11264, "GTX-1080-Ti", 11),
    ("GeForce GTX 1060 6GB", 6078, "GTX-1060", 6),
    ("NVIDIA TITAN V", 12288, "TITAN-V", 12),
    ("NVIDIA TITAN Xp", 12196, "TITAN-Xp", 12),
    ("NVIDIA TITAN RTX", 24576, "TITAN-RTX", 24),
    ("NVIDIA CMP 170HX", 8192, "CMP-170HX", 8),
    ("GRID A100-10C", 10240, "A100", 10),
    ("NVIDIA A10-24Q", 24576, "A10", 24),
    ("Orin (nvgpu)", None, "Orin", 0),
    ("NVIDIA Thor", None, "Thor", 0),
    ("NVIDIA Graphics Device", 81920, "unknown", 80),
    ("", None, "unknown", 0),
]


@pytest.mark.parametrize(("name", "memory_mib", "expected", "_gigabytes"), PRODUCTS)
def test_types_are_what_people_type(name: str, memory_mib: int, expected: str, _gigabytes: int) -> None:
    assert gpu_type(name) == expected


@pytest.mark.parametrize(("name", "memory_mib", "_type", "gigabytes"), PRODUCTS)
def test_sizes_are_what_the_box_says(name: str, memory_mib: int | None, _type: str, gigabytes: int) -> None:
    memory_bytes = None if memory_mib is None else memory_mib * 2**20
    assert nominal_gigabytes(name, memory_bytes) == gigabytes


def test_a_size_nobody_sells_is_rounded_up() -> None:
    assert nominal_gigabytes("NVIDIA X1", 60 * 2**30 + 1) == 64
    assert nominal_gigabytes("NVIDIA X1", 55 * 2**30 + 1) == 56
    assert nominal_gigabytes("NVIDIA X1", 1000 * 2**30) == 1000
    assert nominal_gigabytes("NVIDIA X1", 0) == 0


@given(st.text(max_size=96))
def test_any_name_has_a_type(name: str) -> None:
    assert gpu_type(name)
    assert nominal_gigabytes(name, None) >= 0


@given(st.integers(min_value=1, max_value=2**41))
def test_the_nominal_size_is_no_smaller_than_the_memory_and_not_much_larger(memory_bytes: int) -> None:
    gigabytes = nominal_gigabytes("NVIDIA X1", memory_bytes)
    assert gigabytes * 2**30 >= memory_bytes
    assert gigabytes <= max(1, memory_bytes / 2**30 / 0.92 + 1)
