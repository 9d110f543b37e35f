"""Claims made from templates: decided as soon as they are there, and mistaken for no other pod's."""

from typing import Any

from tests.fleet import claim, machine, pod
from tests.unit.controller.test_decide import NAMES, allocated, node_of
from tests.unit.controller.world import World

from tangram.controller.decide import Nothing, Placed
from tangram.controller.generated import GeneratedClaims
from tangram.controller.unused import UnusedClaims
from tangram.kube.decoding import ObjectKey

A100 = machine(switch_links=12)
KEY = ObjectKey("default", "p")


def templated(*entries: str, **names: str) -> dict[str, Any]:
    """A pod with claims from templates; `names` are those that its status says."""
    item = pod("p")
    item["metadata"]["uid"] = "uid-p"
    item["spec"]["resourceClaims"] = [{"name": e, "resourceClaimTemplateName": "t"} for e in entries]
    statuses = [{"name": entry, "resourceClaimName": name} for entry, name in names.items()]
    return {**item, "status": {"phase": "Pending", "resourceClaimStatuses": statuses}}


def made(name: str, entry: str, of: dict[str, Any]) -> dict[str, Any]:
    item = claim(name, owner=of)
    item["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": entry}
    return item


def test_decided_before_the_status_names_it() -> None:
    world = World(n1=A100)
    item = templated("gpu")
    world.put(item)
    assert world.decide("p") == Nothing()
    world.queued.clear()
    world.put(made("p-gpu-x", "gpu", item))
    assert world.queued == [KEY]
    assert node_of(world.decide("p")) == "n1"


def test_the_claim_may_be_seen_before_its_pod() -> None:
    world = World(n1=A100)
    item = templated("gpu")
    world.put(made("p-gpu-x", "gpu", item))
    world.put(item)
    assert node_of(world.decide("p")) == "n1"


def test_not_before_all_are_there() -> None:
    world = World(n1=A100)
    item = templated("gpu", "more")
    world.put(item)
    world.put(made("p-gpu-x", "gpu", item))
    assert world.decide("p") == Nothing()
    world.put(made("p-more-x", "more", item))
    assert node_of(world.decide("p")) == "n1"


def test_what_the_status_says_counts() -> None:
    """Two claims for one entry: Kubernetes will name one; the other holds nothing for long."""
    world = World(n1=A100)
    item = templated("gpu")
    world.put(item)
    first, second = made("p-gpu-x", "gpu", item), made("p-gpu-y", "gpu", item)
    world.put(first)
    world.put(second)
    assert world.decide("p") == Nothing()
    world.put(templated("gpu", gpu="p-gpu-y"))
    assert node_of(world.decide("p")) == "n1"
    world.put(allocated(first, "n1", NAMES[0]))
    world.put(allocated(second, "n1", NAMES[1]))
    assert world.decide("p") == Placed("n1")
    finder = UnusedClaims(idle_ttl_s=1, unbound_timeout_s=1000)
    finder.due(world.state, now_s=0.0)
    assert [unused.claim.metadata.name for unused in finder.due(world.state, now_s=2.0)] == ["p-gpu-x"]


def test_a_claim_of_another_pod_or_of_a_user() -> None:
    world = World(n1=A100)
    item = templated("gpu")
    world.put(item)
    world.put(made("p-gpu-x", "gpu", {"metadata": {"name": "p", "uid": "earlier"}}))
    world.put(made("p-gpu-y", "other", item))
    world.put(claim("p-gpu-z", owner=item))
    uncontrolled = made("p-gpu-w", "gpu", item)
    uncontrolled["metadata"]["ownerReferences"][0]["controller"] = False
    world.put(uncontrolled)
    assert world.decide("p") == Nothing()


def test_nothing_is_kept_of_claims_that_are_gone() -> None:
    world = World(n1=A100)
    item = templated("gpu")
    world.put(item)
    one = world.put(made("p-gpu-x", "gpu", item))
    world.put(one)
    world.delete(one)
    assert world.decide("p") == Nothing()
    generated: GeneratedClaims = world.state.generated
    assert not generated._of_pod
    assert not generated._owners
