"""Containers as processes: environment, order, restarts; and nothing of them outlives the guard."""

import asyncio
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tangram.base.errors import InvalidObjectError
from tangram.playground.containers import Container
from tangram.playground.guard import Guard
from tangram.playground.limits import ignored
from tangram.playground.podlife import PodLife
from tangram.testing.clock import FakeClock

TIMEOUT_S = 60
METADATA = {"name": "p", "namespace": "ns", "uid": "u-1", "labels": {"app": "a"}, "annotations": {}}


def pod(**spec: Any) -> dict[str, Any]:
    return {"metadata": METADATA, "spec": {"nodeName": "n", **spec}}


def container(directory: Path, script: str, *, name: str = "main", edits: Any = (), **more: Any) -> Container:
    spec = {"name": name, "image": "i", "command": ["sh", "-c", script], **more}
    return Container(
        spec, path=f"spec.containers[{name}]", pod=pod(), directory=directory / name, edits=edits
    )


class Reports:
    """What a pod's life told."""

    def __init__(self) -> None:
        self.all: list[tuple[str, Mapping[str, Any]]] = []
        self.told = asyncio.Event()

    def __call__(self, phase: str, fields: Mapping[str, Any]) -> None:
        self.all.append((phase, fields))
        self.told.set()

    @property
    def phase(self) -> str:
        return self.all[-1][0]

    def state(self, kind: str = "containerStatuses") -> dict[str, Any]:
        state: dict[str, Any] = self.all[-1][1][kind][0]
        return state


def life(
    guard: Guard,
    reports: Reports,
    clock: FakeClock,
    *,
    policy: str,
    init: Sequence[Container] = (),
    main: Container,
) -> PodLife:
    return PodLife(
        pod(restartPolicy=policy), init=init, main=[main], guard=guard, clock=clock, report=reports
    )


async def output(one: Container, text: str) -> str:
    async with asyncio.timeout(TIMEOUT_S):
        while text.encode() not in (found := one.output()[0]):  # noqa: ASYNC110 - a process sends no event
            await asyncio.sleep(0.01)
    return found.decode()


async def test_environment_and_device_nodes(tmp_path: Path) -> None:
    edits = [{"env": ["TANGRAM_X=1"], "deviceNodes": [{"path": "/dev/nvidia3"}]}]
    env = [
        {"name": "FIRST", "value": "one"},
        {"name": "SECOND", "value": "$(FIRST) $$(FIRST) $(NONE)"},
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "APP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]
    with Guard(tmp_path) as guard:
        one = container(tmp_path, "env; ls /dev/nvidia*; echo $0", edits=edits, env=env, args=["$(SECOND)!"])
        one.start(guard)
        seen = await output(one, "!")
        one.kill()
    for line in ("SECOND=one $(FIRST) $(NONE)", "NAME=p", "APP=a", "NODE=n", "TANGRAM_X=1", "/dev/nvidia3"):
        assert f"{line}\n" in seen
    assert seen.endswith("one $(FIRST) $(NONE)!\n")
    assert str(tmp_path) not in seen.replace(f"HOME={tmp_path}", "").replace(f"PWD={tmp_path}", "")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"command": []}, "spec.containers[main].command: the playground pulls no images"),
        ({"command": ["no-such-program"]}, "there is no program 'no-such-program' on this machine"),
        (
            {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
            "env[A].valueFrom: the playground knows only fieldRef, not secretKeyRef",
        ),
        (
            {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.priority"}}}]},
            "env[A].valueFrom.fieldRef: the playground does not know the field spec.priority",
        ),
    ],
)
def test_what_cannot_run_here_is_refused_by_name(tmp_path: Path, more: Any, message: str) -> None:
    with pytest.raises(InvalidObjectError) as caught:
        container(tmp_path, "true", **more)
    assert message in str(caught.value)


def test_what_is_not_honoured_is_named() -> None:
    spec = {
        "containers": [{"name": "a", "image": "i", "livenessProbe": {"exec": {}}, "volumeMounts": []}],
        "initContainers": [{"name": "b", "envFrom": [{"configMapRef": {}}]}],
        "volumes": [{"name": "v"}],
        "securityContext": {},
    }
    assert ignored(spec) == [
        "spec.volumes", "spec.initContainers[b].envFrom", "spec.containers[a].livenessProbe",
    ]  # fmt: skip


async def test_init_containers_come_first(tmp_path: Path) -> None:
    reports, clock = Reports(), FakeClock()
    with Guard(tmp_path) as guard:
        init = container(tmp_path, f"touch {tmp_path}/made", name="init")
        main = container(tmp_path, f"test -e {tmp_path}/made")
        await life(guard, reports, clock, policy="Never", init=[init], main=main).run()
    assert [phase for phase, _ in reports.all[:1]] == ["Pending"]
    assert reports.phase == "Succeeded"
    assert reports.state("initContainerStatuses")["state"]["terminated"]["exitCode"] == 0


async def test_a_failed_init_container_fails_a_pod_that_never_restarts(tmp_path: Path) -> None:
    reports, clock = Reports(), FakeClock()
    with Guard(tmp_path) as guard:
        init = container(tmp_path, "exit 4", name="init")
        main = container(tmp_path, "true")
        await life(guard, reports, clock, policy="Never", init=[init], main=main).run()
    assert reports.phase == "Failed"
    assert reports.state("initContainerStatuses")["state"]["terminated"]["exitCode"] == 4
    assert main.starts == 0


@pytest.mark.parametrize(
    ("policy", "script", "phase", "starts"),
    [
        ("Never", "exit 3", "Failed", 1),
        ("Never", "exit 0", "Succeeded", 1),
        ("Never", "kill -9 $$$$", "Failed", 1),
        # Fails once, and succeeds when it is started again.
        ("OnFailure", "test -e again || { touch again; exit 3; }", "Succeeded", 2),
    ],
)
async def test_restart_policies(tmp_path: Path, policy: str, script: str, phase: str, starts: int) -> None:
    reports, clock = Reports(), FakeClock()
    with Guard(tmp_path) as guard:
        main = container(tmp_path, script)
        running = asyncio.create_task(life(guard, reports, clock, policy=policy, main=main).run())
        if starts > 1:
            await until_waiting(reports)
            await clock.advance(1)
        await running
    assert (reports.phase, main.starts) == (phase, starts)
    state = reports.state()
    assert state["restartCount"] == starts - 1
    assert bool(state["state"]["terminated"]["exitCode"]) == (phase == "Failed")
    if "kill" in script:
        assert state["state"]["terminated"]["exitCode"] == 128 + signal.SIGKILL


async def until_waiting(reports: Reports) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not reports.all or "waiting" not in reports.state()["state"]:
            reports.told.clear()
            await reports.told.wait()


async def test_what_is_always_restarted_backs_off(tmp_path: Path) -> None:
    reports, clock = Reports(), FakeClock()
    with Guard(tmp_path) as guard:
        main = container(tmp_path, "echo hello; exit 2")
        pod_life = life(guard, reports, clock, policy="Always", main=main)
        running = asyncio.create_task(pod_life.run())
        await until_waiting(reports)
        assert reports.phase == "Running"
        assert reports.state()["state"]["waiting"]["reason"] == "CrashLoopBackOff"
        assert reports.state()["lastState"]["terminated"]["exitCode"] == 2
        reports.all.clear()
        await clock.advance(1)
        await until_waiting(reports)
        assert "back-off 2s" in reports.state()["state"]["waiting"]["message"]
        assert main.output(previous=True)[0] == b"hello\n"
        running.cancel()
        await asyncio.wait({running})
        pod_life.kill()
    assert main.starts == 2


async def test_stop_asks_and_then_kills(tmp_path: Path) -> None:
    reports, clock = Reports(), FakeClock()
    with Guard(tmp_path) as guard:
        main = container(tmp_path, "trap 'echo asked' TERM; echo up; while :; do sleep 1; done")
        pod_life = life(guard, reports, clock, policy="Always", main=main)
        running = asyncio.create_task(pod_life.run())
        await output(main, "up")
        running.cancel()
        await asyncio.wait({running})
        await pod_life.stop(grace_s=0.2)
    assert main.exit_code() == 128 + signal.SIGKILL


async def test_the_guard_ends_what_was_left_and_removes_its_directory(tmp_path: Path) -> None:
    with Guard(tmp_path) as guard:
        log = guard.directory / "log"
        with log.open("wb") as file:
            words = ["sh", "-c", "echo up; sleep 600 & wait"]
            group = guard.start(words, environment={"PATH": "/usr/bin:/bin"}, output=file, directory=tmp_path)
        async with asyncio.timeout(TIMEOUT_S):
            while b"up" not in log.read_bytes():  # noqa: ASYNC110 - a process sends no event
                await asyncio.sleep(0.01)
    assert group.exit_code() == 128 + signal.SIGKILL
    assert not guard.directory.exists()


def test_the_guardian_spares_what_has_ended(tmp_path: Path) -> None:
    """Its number may be that of another process group by then."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as other:
        with Guard(tmp_path) as guard:
            guard.forget(other.pid)
        assert other.poll() is None
        other.kill()


async def test_a_terminal_that_was_told_of_the_cluster_is_spared(tmp_path: Path) -> None:
    """All that is started there inherits its KUBECONFIG. What the playground started ends, wherever it is."""
    path = {"PATH": "/usr/bin:/bin"}
    with Guard(tmp_path) as guard:
        log = guard.directory / "log"
        known = {**path, "KUBECONFIG": f"{guard.directory}/kubeconfig", "OLDPWD": str(guard.directory)}
        editor = await asyncio.create_subprocess_exec("sleep", "600", env=known)
        pipe = {"CUDA_MPS_PIPE_DIRECTORY": f"{guard.directory}/mps"}
        daemon = await asyncio.create_subprocess_exec("sleep", "600", env={**path, **pipe})
        with log.open("wb") as file:
            words = ["setsid", "--fork", "sh", "-c", "echo $$; exec sleep 600"]
            home = {"HOME": str(guard.directory / "pods")}
            group = guard.start(words, environment={**path, **home}, output=file, directory=tmp_path)
        async with asyncio.timeout(TIMEOUT_S):
            while not log.read_bytes().endswith(b"\n"):  # noqa: ASYNC110 - a process sends no event
                await asyncio.sleep(0.01)
        line = Path("/proc") / str(int(log.read_bytes())) / "cmdline"
    try:
        async with asyncio.timeout(TIMEOUT_S):
            assert await daemon.wait() == -signal.SIGKILL
        assert group.exit_code() is not None
        assert not (line.exists() and line.read_bytes())  # who is dead and not buried has none
        assert editor.returncode is None
    finally:
        editor.kill()
    assert await editor.wait() == -signal.SIGKILL
