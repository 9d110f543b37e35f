"""What the playground says to type next can be typed so."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tangram.playground.app import _kept


def kept(*pods: SimpleNamespace) -> list[str]:
    cluster: Any = SimpleNamespace(
        kubeconfig="/tmp/t/kubeconfig",
        nodes={"node-1": None},
        settings_file=lambda name: f"/tmp/t/{name}.json",
    )
    play: Any = SimpleNamespace(recorder=SimpleNamespace(pods={pod.name: pod for pod in pods}))
    return _kept(cluster, play)


def pod(name: str, node: str = "", *, namespace: str = "default") -> SimpleNamespace:
    phase = "Running" if node else "Pending"
    return SimpleNamespace(name=name, namespace=namespace, node=node, gone=False, phase=phase, devices=[1])


@pytest.fixture
def tangram(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The command is beside the Python that runs, and in no PATH."""
    (tmp_path / "tangram").touch()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    return str(tmp_path / "tangram")


def test_why_is_asked_of_a_pod_that_waits(tangram: str) -> None:
    lines = kept(pod("runs", "node-1"), pod("waits"), pod("waits-too"))
    assert f"  {tangram} why pod/waits" in lines
    assert f"  {tangram} node status --config /tmp/t/node-1.json" in lines
    assert "  kubectl delete pod runs" in lines


def test_where_all_run_it_is_not(tangram: str) -> None:
    assert not any(" why " in line for line in kept(pod("runs", "node-1")))


def test_the_namespace_is_named_where_it_is_another(tangram: str) -> None:
    lines = kept(pod("runs", "node-1", namespace="a"), pod("waits", namespace="b"))
    assert "  kubectl delete pod runs -n a" in lines
    assert "  kubectl describe pod waits -n b" in lines
    assert f"  {tangram} why pod/waits -n b" in lines
