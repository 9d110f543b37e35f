"""What `kubectl get` prints of the fake API server's objects."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tangram.kube.resources import PODS, RESOURCE_CLAIMS
from tangram.testing.apiserver import CONFIG_MAPS, JOBS, tables

NOW = datetime(2026, 1, 3, tzinfo=UTC)


def row(resource: Any, **fields: Any) -> dict[str, Any]:
    metadata = {"name": "x", "creationTimestamp": "2026-01-02T23:59:30Z", **fields.pop("metadata", {})}
    made = tables.table(
        resource, [{"metadata": metadata, **fields}], metadata={"resourceVersion": "7"}, now=NOW
    )
    names = [column["name"] for column in made["columnDefinitions"]]
    return dict(zip(names, made["rows"][0]["cells"], strict=True))


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        ({}, "Unknown"),
        ({"phase": "Pending"}, "ContainerCreating"),
        ({"phase": "Running"}, "Running"),
        ({"phase": "Succeeded"}, "Completed"),
        ({"phase": "Failed", "reason": "NotInPlayground"}, "NotInPlayground"),
    ],
)
def test_pods(status: dict[str, Any], shown: str) -> None:
    spec = {"nodeName": "n", "containers": [{"name": "a"}, {"name": "b"}]}
    ready = {"containerStatuses": [{"ready": True}]}
    assert row(PODS, spec=spec, status={**ready, **status}) == {
        "Name": "x", "Ready": "1/2", "Status": shown, "Restarts": "0", "Age": "30s", "Node": "n",
    }  # fmt: skip


def container(restarts: int = 0, **state: Any) -> dict[str, Any]:
    return {"ready": "running" in state, "restartCount": restarts, "state": state}


ENDED = container(terminated={"exitCode": 0, "reason": "Completed"})


@pytest.mark.parametrize(
    ("init", "main", "shown", "restarts"),
    [
        ([], [container(3, waiting={"reason": "CrashLoopBackOff"})], "CrashLoopBackOff", "3"),
        ([], [container(running={}), container(terminated={"exitCode": 7, "reason": "Error"})], "Error", "0"),
        ([ENDED], [container(1, running={})], "Running", "1"),
        ([ENDED, container(running={})], [container(waiting={"reason": "PodInitializing"})], "Init:1/2", "0"),
        ([container(2, waiting={"reason": "CrashLoopBackOff"})], [], "Init:CrashLoopBackOff", "2"),
    ],
)
def test_containers_are_told_of(init: Any, main: Any, shown: str, restarts: str) -> None:
    phase = "Running" if not init or init == [ENDED] else "Pending"
    status = {"phase": phase, "initContainerStatuses": init, "containerStatuses": main}
    found = row(PODS, spec={"nodeName": "n"}, status=status)
    assert (found["Status"], found["Restarts"]) == (shown, restarts)


def test_absent_fields() -> None:
    assert row(PODS)["Ready"] == "0/0"
    assert row(RESOURCE_CLAIMS)["State"] == "pending"
    assert row(JOBS)["Completions"] == "0/1"


@pytest.mark.parametrize(
    ("created", "age"),
    [
        ("2026-01-02T23:58:01Z", "119s"),
        ("2026-01-02T23:58:00Z", "2m"),
        ("2026-01-02T12:00:00Z", "12h"),
        ("2025-12-31T12:00:00Z", "2d"),
        ("2027-01-01T00:00:00Z", "0s"),
    ],
)
def test_age(created: str, age: str) -> None:
    assert row(RESOURCE_CLAIMS, metadata={"creationTimestamp": created})["Age"] == age


def test_only_who_asks_for_a_table_gets_one() -> None:
    kubectl = (
        "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1,application/json"
    )
    assert tables.form(kubectl, PODS) == "Table"
    assert tables.form(kubectl, CONFIG_MAPS) == "Object"  # kubectl finds name and age itself
    assert tables.form("application/json", PODS) == "Object"
    assert tables.form("", PODS) == "Object"
