"""What a node has at all of the classes that claims ask for, and what selectors may cost in one decision."""

from typing import Any

import msgspec
import pytest
from tests.unit.allocation.structured.world import (
    ANY,
    DRIVER,
    NODE,
    claim,
    device,
    either,
    request,
    slice_,
    sub,
)

from tangram import DRIVER_NAME
from tangram.allocation.structured import Cluster, Options, Shortage, offer
from tangram.allocation.structured.account import Account, TooDear
from tangram.model.kubernetes import DeviceClass, ResourceClaim, ResourceSlice

Json = dict[str, Any]


def selecting(name: str, expression: str) -> Json:
    return {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}


def offered(slices: list[Json], claims: list[Json], *classes: Json, **options: Any) -> Shortage:
    cluster = Cluster(
        slices=msgspec.convert(slices, list[ResourceSlice]),
        classes=msgspec.convert([ANY, *classes], list[DeviceClass]),
    )
    asked = msgspec.convert(claims, list[ResourceClaim])
    return offer(cluster, NODE, asked, options=Options(**options))


SMALL = selecting("small", f'device.attributes["{DRIVER}"].size == 1')
BIG = selecting("big", f'device.attributes["{DRIVER}"].size == 3')
SIZES = [slice_(*[device(f"d{i}", attributes={"size": i}) for i in range(5)])]


def test_devices_of_the_classes_count_whatever_else_is_asked_for() -> None:
    wants = claim(request(cls="small", count=9, when=f'device.attributes["{DRIVER}"].size == 7'))
    found = offered(SIZES, [wants], SMALL)
    assert (found.left, found.others, found.devices) == (1, 4, 1)
    assert found.kinds == {""}


def test_any_of_the_classes_will_do() -> None:
    wants = [claim(either("r", sub("x", cls="small"), sub("y", cls="big"))), claim(request(cls="small"))]
    assert (offered(SIZES, wants, SMALL, BIG).left, offered(SIZES, wants, SMALL, BIG).others) == (2, 3)
    assert offered(SIZES, [], SMALL).left == 0


def test_what_kube_scheduler_allocates_is_not_offered() -> None:
    mine = {"type": "gpu", "allocator": "controller", "healthy": True}
    items = [device("a", attributes=mine), device("b", attributes=mine | {"allocator": "scheduler"})]
    found = offered([slice_(*items, driver=DRIVER_NAME)], [claim(request())])
    assert (found.left, found.others) == (1, 1)
    assert found.kinds == {"gpu"}


@pytest.mark.parametrize(
    ("wants", "options"),
    [
        (claim(request(cls="nobody knows")), {}),
        (claim(request(cls="small")), {"selector_units": 1}),
    ],
    ids=["fatal", "too dear"],
)
def test_all_devices_count_where_it_cannot_be_found_out(wants: Json, options: Json) -> None:
    found = offered(SIZES, [wants], SMALL, **options)
    assert (found.left, found.others) == (5, 0)


def test_a_node_that_cannot_be_looked_at_offers_nothing() -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "Resembles"}]}]
    broken = slice_("a", nodeSelector={"nodeSelectorTerms": terms})
    found = offered([broken], [claim(request())])
    assert found == Shortage()
    assert (found.left, found.others, found.devices) == (0, 0, 0)


def test_a_cluster_of_prepared_slices_is_that_of_the_objects() -> None:
    made = Cluster(
        slices=msgspec.convert(
            [*SIZES, slice_("x", name="s2", pool="q", allNodes=True)], list[ResourceSlice]
        ),
        classes=msgspec.convert([SMALL], list[DeviceClass]),
    )
    same = Cluster.of(made.slices, made.classes)
    wants = msgspec.convert([claim(request(cls="small"))], list[ResourceClaim])
    for cluster in (made, same):
        found = offer(cluster, NODE, wants, options=Options())
        assert (found.left, found.others) == (1, 5)
    assert set(same.by_node) == {"n", ""}


# --- the account ---


def test_an_account_refuses_what_goes_beyond_it_and_only_that() -> None:
    enough, short = Account(10), Account(9)
    for _ in range(2):  # what is paid for is free
        enough.pay(((1, 4), (2, 6)))
        enough.pay(((2, 6),))
    with pytest.raises(TooDear):
        short.pay(((1, 4), (2, 6)))
    assert enough.exhausted == ""
    assert short.exhausted.startswith("the selectors cost too much")
    with pytest.raises(TooDear):
        short.pay(((3, 0),))


def test_each_look_at_a_device_counts_and_devices_allow_for_more() -> None:
    plain, allowed = Account(10), Account(10)
    allowed.allow(1)
    for account, looks in ((plain, 33_000), (allowed, 33_004)):
        for _ in range(looks):
            account.look()
    assert plain.exhausted == allowed.exhausted == ""
    for account in (plain, allowed):
        with pytest.raises(TooDear):
            account.look()
    assert plain.exhausted == allowed.exhausted
    assert plain.exhausted.startswith("there are too many requests")
