"""The ledger: claims in, holdings out; assumptions outrank what is older than they are."""

import json
from typing import Any

import pytest
from tests.fleet import claim as claim_object

from tangram import DRIVER_NAME
from tangram.allocation import ClaimKey, claim_key
from tangram.allocation.structured import DeviceId
from tangram.controller.ledger import Assumption, Ledger, device_id, held_results
from tangram.kube.client import decode
from tangram.kube.objects import ResourceClaim

POOL = f"{DRIVER_NAME}/n1"
A, B = DeviceId(DRIVER_NAME, POOL, "gpu-a"), DeviceId(DRIVER_NAME, POOL, "gpu-b")


def claim(name: str, *devices: DeviceId, version: str = "1", uid: str = "", **result: Any) -> ResourceClaim:
    item = claim_object(name)
    item["metadata"] |= {"resourceVersion": version, "uid": uid or name}
    if devices:
        results = [
            {"request": "gpu", "driver": DRIVER_NAME, "pool": d.pool, "device": d.device, **result}
            for d in devices
        ]
        item["status"] = {"allocation": {"devices": {"results": results}}}
    return decode(json.dumps(item).encode(), ResourceClaim)


def held(ledger: Ledger) -> dict[DeviceId, tuple[ClaimKey, ...]]:
    """Device → who holds it."""
    found: dict[DeviceId, tuple[ClaimKey, ...]] = {}
    for holdings in ledger.held().values():
        for key, results in holdings.by_claim.items():
            for result in results:
                device = device_id(result)
                found[device] = (*found.get(device, ()), key)
    return found


def test_allocated_claims_hold_their_devices() -> None:
    ledger = Ledger()
    assert not ledger.observe(None, claim("c", A, B))
    assert held(ledger) == {A: (claim_key(claim("c")),), B: (claim_key(claim("c")),)}
    assert ledger.observe(claim("c", A, B), claim("c"))
    assert held(ledger) == {}


def test_a_deleted_claim_holds_nothing_and_says_so() -> None:
    ledger = Ledger()
    ledger.observe(None, claim("c", A))
    assert ledger.observe(claim("c", A), None)
    assert held(ledger) == {}


def test_a_claim_created_anew_under_the_same_name() -> None:
    ledger = Ledger()
    ledger.observe(None, claim("c", A, uid="old"))
    assert ledger.observe(claim("c", A, uid="old"), claim("c", uid="new"))
    assert held(ledger) == {}


def test_foreign_and_administrative_results_take_nothing() -> None:
    ledger = Ledger()
    ledger.observe(None, claim("admin", A, adminAccess=True))
    ledger.observe(None, claim("other", B, driver="nic.example.com"))
    assert held(ledger) == {}


def test_two_claims_on_one_device_are_both_known() -> None:
    ledger = Ledger()
    ledger.observe(None, claim("c", A))
    ledger.observe(None, claim("d", A))
    assert [holder.name for holder in ledger.holders(A)] == ["c", "d"]
    ledger.observe(claim("c", A), claim("c"))
    assert [holder.name for holder in ledger.holders(A)] == ["d"]


class TestAssumptions:
    def assumed(self, ledger: Ledger) -> Assumption:
        assumption = Assumption(node="n1", devices=held_results(claim("c", A)), versions={"1"})
        ledger.observe(None, claim("c", version="1"))
        ledger.assume(claim_key(claim("c")), assumption)
        return assumption

    def test_the_watch_lagging_behind_our_own_write_frees_nothing(self) -> None:
        ledger = Ledger()
        assumption = self.assumed(ledger)
        # The finalizer patch is seen before its answer is.
        assert not ledger.observe(claim("c", version="1"), claim("c", version="2"))
        assert A in held(ledger)
        assumption.versions |= {"2", "3"}
        assumption.in_flight = False
        assert not ledger.observe(claim("c", version="1"), claim("c", version="2"))
        assert A in held(ledger)

    def test_the_allocation_coming_back_replaces_the_assumption(self) -> None:
        ledger = Ledger()
        self.assumed(ledger)
        ledger.observe(claim("c", version="2"), claim("c", B, version="3"))
        assert ledger.assumption(claim_key(claim("c"))) is None
        assert set(held(ledger)) == {B}

    def test_a_later_deallocation_ends_it(self) -> None:
        ledger = Ledger()
        assumption = self.assumed(ledger)
        assumption.versions |= {"2", "3"}
        assumption.in_flight = False
        assert ledger.observe(claim("c", version="2"), claim("c", version="9"))
        assert held(ledger) == {}

    def test_a_failed_write_gives_the_devices_back(self) -> None:
        ledger = Ledger()
        self.assumed(ledger)
        ledger.drop_assumption(claim_key(claim("c")))
        assert held(ledger) == {}
        assert ledger.assumption(claim_key(claim("c"))) is None


@pytest.mark.parametrize("amount", ["-1Gi", "x", "", "1e301"])
def test_a_share_of_no_size_counts_as_the_whole_device(amount: str) -> None:
    wrong = claim("a", A, shareID="s", consumedCapacity={"cores": "10", "memory": amount})
    (result,) = held_results(wrong)
    assert (result.share_id, result.consumed_capacity) == (None, None)
    (result,) = held_results(claim("a", A, shareID="s", consumedCapacity={"memory": "1Gi"}))
    assert result.share_id == "s"
