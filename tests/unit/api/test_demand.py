"""Which devices a demand accepts, and the few words it has for the others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.api import Demand, DeviceFacts, GpuType
from tangram.model.product import gpu_type, nominal_gigabytes, product_words


def facts(product: str, memory_bytes: int | None) -> DeviceFacts:
    return DeviceFacts(
        memory_bytes=memory_bytes,
        nominal_gb=nominal_gigabytes(product, memory_bytes),
        gpu_type=gpu_type(product),
        product_name=product,
    )


H100 = facts("NVIDIA H100 80GB HBM3", 85_520_809_984)
A100_40 = facts("NVIDIA A100-SXM4-40GB", 42_949_672_960)
A100_80 = facts("NVIDIA A100-SXM4-80GB", 85_899_345_920)
A100_PCIE = facts("NVIDIA A100-PCIE-40GB", 42_949_672_960)
T4 = facts("Tesla T4", 16_106_127_360)
A6000 = facts("NVIDIA RTX A6000", 51_527_024_640)
UNIFIED = facts("NVIDIA GB10", None)
UNKNOWN = DeviceFacts(memory_bytes=None, nominal_gb=0, gpu_type="", product_name="")


@pytest.mark.parametrize(
    ("memory_gb", "device", "refusal"),
    [
        (80, H100, None),
        (85, H100, None),
        (86, H100, "with 79.6Gi memory, less than 86 GB"),
        (80, A100_40, "with 40Gi memory, less than 80 GB"),
        (40, A100_40, None),
        (42, A100_40, None),
        (43, A100_40, "with 40Gi memory, less than 43 GB"),
        (16, T4, None),
        (17, T4, "with 15Gi memory, less than 17 GB"),
        (1, UNIFIED, "of unknown memory, where 1 GB is needed"),
        # A GPU sold as 80 GB that reports less satisfies 80.
        (80, DeviceFacts(memory_bytes=79 * 10**9, nominal_gb=80, gpu_type="X", product_name="X"), None),
        (80, DeviceFacts(memory_bytes=80 * 10**9, nominal_gb=0, gpu_type="X", product_name="X"), None),
        (80, DeviceFacts(memory_bytes=None, nominal_gb=80, gpu_type="X", product_name="X"), None),
    ],
)
def test_memory(memory_gb: int, device: DeviceFacts, refusal: str | None) -> None:
    assert Demand(memory_gb=memory_gb).accepts(device) == refusal


@pytest.mark.parametrize(
    ("text", "device", "refusal"),
    [
        ("H100", H100, None),
        ("h100", H100, None),
        ("H100-80GB", H100, None),
        ("H100 80GB", H100, None),
        ("NVIDIA H100 80GB HBM3", H100, None),
        ("NVIDIA-H100-80GB-HBM3", H100, None),
        ("H100-96GB", H100, "of type H100 80GB, not H100-96GB"),
        ("H100-PCIe", H100, "of type H100, not H100-PCIe"),
        ("H100", A100_80, "of type A100, not H100"),
        ("H10", H100, "of type H100, not H10"),
        ("H1000", H100, "of type H100, not H1000"),
        ("A100", A100_40, None),
        ("A100-40GB", A100_40, None),
        ("A100-80gb", A100_40, "of type A100 40GB, not A100-80gb"),
        ("A100-SXM4", A100_80, None),
        ("A100-SXM4-80GB", A100_80, None),
        ("A100-SXM4-80GB", A100_40, "of type A100 40GB, not A100-SXM4-80GB"),
        ("A100-SXM4", A100_PCIE, "of type A100, not A100-SXM4"),
        ("Tesla T4", T4, None),
        ("T4-16GB", T4, None),
        ("T4-24GB", T4, "of type T4 16GB, not T4-24GB"),
        ("RTX-A6000", A6000, None),
        ("rtx a6000", A6000, None),
        ("RTX", A6000, "of type RTX-A6000, not RTX"),
        ("A6000", A6000, "of type RTX-A6000, not A6000"),
        ("H100", UNKNOWN, "of unknown type, not H100"),
    ],
)
def test_type(text: str, device: DeviceFacts, refusal: str | None) -> None:
    assert Demand(gpu_type=GpuType.parse(text)).accepts(device) == refusal


def test_type_is_judged_before_memory() -> None:
    assert Demand(gpu_type=GpuType.parse("H100"), memory_gb=80).accepts(T4) == "of type T4, not H100"


@pytest.mark.parametrize("device", [H100, T4, UNIFIED, UNKNOWN])
def test_no_demand_accepts_every_device(device: DeviceFacts) -> None:
    assert Demand().accepts(device) is None


@given(st.text(max_size=40), st.text(max_size=40), st.integers(0, 2**48) | st.none(), st.integers(0, 999))
def test_any_facts_have_an_answer(text: str, product: str, memory_bytes: int | None, memory_gb: int) -> None:
    words = product_words(text)
    wanted = GpuType.parse(text) if words and not words[-1].endswith("GB") else None
    answer = Demand(gpu_type=wanted, memory_gb=memory_gb).accepts(facts(product, memory_bytes))
    assert answer is None or answer.startswith(("of type ", "of unknown ", "with "))


@given(st.sampled_from([H100, A100_40, A100_80, A100_PCIE, A6000]))
def test_a_product_accepts_its_own_names(device: DeviceFacts) -> None:
    for name in (device.product_name, device.gpu_type, device.product_name.replace(" ", "-").lower()):
        assert Demand(gpu_type=GpuType.parse(name)).accepts(device) is None
