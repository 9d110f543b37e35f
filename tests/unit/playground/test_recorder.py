"""What is told of pods that cannot run as things are, and no more once they can."""

from pathlib import Path
from typing import Any

import pytest

from tangram.kube.resources import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS
from tangram.playground import claimcontroller, scheduler
from tangram.playground.recorder import Recorder
from tangram.testing.apiserver import NAMESPACES, RESOURCE_CLAIM_TEMPLATES, FakeApiServer
from tangram.testing.clock import FakeClock

REQUESTS = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}}
CONTAINER = {"name": "main", "image": "busybox"}


class Playground:
    """The stand-ins, stepped by hand."""

    def __init__(self, directory: Path) -> None:
        self.server = FakeApiServer()
        self._clock = FakeClock()
        self.recorder = Recorder(self.server, controller_log=directory / "log")
        self.server.create(NODES, {"metadata": {"name": "node-1", "labels": {"a": "b"}}, "spec": {}})
        self.server.create(DEVICE_CLASSES, {"metadata": {"name": "c"}, "spec": {}})

    def pod(self, **spec: Any) -> None:
        self.server.create(PODS, {"metadata": {"name": "p"}, "spec": {"containers": [CONTAINER], **spec}})

    def waits(self) -> str:
        claimcontroller.step(self.server, self._clock)
        scheduler.step(self.server, self._clock)
        self.recorder.observe()
        (seen,) = self.recorder.pods.values()
        return seen.waits


@pytest.fixture
def playground(tmp_path: Path) -> Playground:
    return Playground(tmp_path)


def test_a_template_that_is_not_there(playground: Playground) -> None:
    playground.pod(resourceClaims=[{"name": "g", "resourceClaimTemplateName": "nope"}])
    assert playground.waits() == 'PodResourceClaim g: resource claim template "nope" not found'


def test_only_one_of_two_templates_is_there(playground: Playground) -> None:
    playground.server.create(
        RESOURCE_CLAIM_TEMPLATES, {"metadata": {"name": "there"}, "spec": {"spec": REQUESTS}}
    )
    entries = [{"name": name, "resourceClaimTemplateName": name} for name in ("nope", "there")]
    playground.pod(resourceClaims=entries)
    assert playground.waits() == 'PodResourceClaim nope: resource claim template "nope" not found'
    assert len(playground.server.objects(RESOURCE_CLAIMS)) == 1


def test_a_claim_that_is_not_there_and_comes(playground: Playground) -> None:
    playground.pod(resourceClaims=[{"name": "g", "resourceClaimName": "late"}])
    assert playground.waits() == "there is no ResourceClaim late"
    playground.server.create(RESOURCE_CLAIMS, {"metadata": {"name": "late"}, "spec": REQUESTS})
    assert playground.waits() == ""


def test_no_node_with_the_label_until_there_is_one(playground: Playground) -> None:
    playground.pod(nodeSelector={"a": "c"})
    assert playground.waits() == scheduler.NO_NODE
    playground.server.create(NODES, {"metadata": {"name": "node-2", "labels": {"a": "c"}}, "spec": {}})
    assert playground.waits() == ""


@pytest.mark.parametrize("listed", [False, True])
def test_a_class_that_is_not_there_and_comes(playground: Playground, listed: bool) -> None:
    asked: dict[str, Any] = {"name": "r", "exactly": {"deviceClassName": "late"}}
    if listed:
        subrequests = [{"name": name, "deviceClassName": name} for name in ("c", "late")]
        asked = {"name": "r", "firstAvailable": subrequests}
    playground.server.create(
        RESOURCE_CLAIMS, {"metadata": {"name": "g"}, "spec": {"devices": {"requests": [asked]}}}
    )
    playground.pod(resourceClaims=[{"name": "g", "resourceClaimName": "g"}])
    assert playground.waits() == "request r: device class late does not exist"
    playground.server.create(DEVICE_CLASSES, {"metadata": {"name": "late"}, "spec": {}})
    assert playground.waits() == ""


def test_who_only_looks_holds_nothing(playground: Playground) -> None:
    """A claim with adminAccess leaves a GPU free for others."""
    requests = [{"name": "r", "exactly": {"deviceClassName": "c", "adminAccess": True}}]
    playground.server.create(
        NAMESPACES,
        {"metadata": {"name": "watch", "labels": {"resource.kubernetes.io/admin-access": "true"}}},
    )
    for name, namespace, admin in (("watches", "watch", True), ("holds", "default", None)):
        spec = {"devices": {"requests": requests}} if admin else REQUESTS
        place = {"name": name, "namespace": namespace}
        playground.server.create(RESOURCE_CLAIMS, {"metadata": place, "spec": spec})
        result = {"request": "r", "driver": "d", "pool": "d/node-1", "device": "gpu-0", "adminAccess": admin}
        status = {"allocation": {"devices": {"results": [result]}}}
        playground.server.patch(
            RESOURCE_CLAIMS, {"status": status}, name=name, namespace=namespace, subresource="status"
        )
    assert playground.recorder.holders() == {("node-1", "gpu-0"): ["claim holds"]}
