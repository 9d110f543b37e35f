import re

from hypothesis import given
from hypothesis import strategies as st

from tangram.kubeletplugin.slices import Pool, Slice, slice_name

SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
labels = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True)
subdomains = st.lists(labels, min_size=1, max_size=8).map(".".join)


def test_an_ordinary_name() -> None:
    """The digest by hand: `printf 'gpu.example.com\\0node-1\\0gpu.example.com/node-1' | sha256sum`."""
    name = slice_name(
        index=26, driver_name="gpu.example.com", node_name="node-1", pool_name="gpu.example.com/node-1"
    )
    assert name == "0001a-gpu.example.com-node-1-f87f0a54"


@given(st.integers(0, 0xFFFFF), subdomains.filter(lambda s: len(s) <= 63), subdomains, subdomains)
def test_names_are_valid(index: int, driver_name: str, node_name: str, pool_name: str) -> None:
    name = slice_name(
        index=index, driver_name=driver_name, node_name=node_name[:253].rstrip(".-"), pool_name=pool_name
    )
    assert len(name) <= 253
    assert SUBDOMAIN.fullmatch(name)


@given(st.lists(st.integers(0, 0xFFFFF), unique=True), st.sampled_from(["n", "n" * 253]))
def test_order_of_names_is_order_of_slices(indexes: list[int], node_name: str) -> None:
    names = [slice_name(index=i, driver_name="d", node_name=node_name, pool_name="p") for i in indexes]
    assert sorted(names) == [name for _, name in sorted(zip(indexes, names, strict=True))]


def test_pools_and_nodes_never_share_a_name() -> None:
    def name(driver: str, node: str, pool: str) -> str:
        return slice_name(index=0, driver_name=driver, node_name=node, pool_name=pool)

    different = [
        ("d", "n", "p"),
        ("d", "n", "q"),
        ("d-n", "m", "p"),
        ("d", "n-m", "p"),
        ("d", "n" * 253, "p"),
        ("d", "n" * 252 + "m", "p"),
    ]
    assert len({name(*each) for each in different}) == len(different)


def test_an_empty_pool_is_one_empty_slice() -> None:
    (spec,) = Pool().specs(driver_name="d", node_name="n", pool_name="p")
    assert spec == {
        "driver": "d",
        "nodeName": "n",
        "pool": {"name": "p", "resourceSliceCount": 1},
    }


def test_a_copy_shares_nothing() -> None:
    device = {"name": "a", "attributes": {"x": {"int": 1}}}
    pool = Pool(slices=(Slice(devices=(device,)),))
    copied = pool.copy()
    device["attributes"]["x"]["int"] = 2  # type: ignore[index]
    assert copied.slices[0].devices[0]["attributes"]["x"] == {"int": 1}
