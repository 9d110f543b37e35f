"""The playground as a person has it: the real command, kubectl against it, and no trace of it afterwards."""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
KUBECTL = Path(sys.executable).parent / "kubectl"
EXAMPLE = ROOT / "deploy" / "examples" / "01-one-gpu.yaml"
TIMEOUT_S = 60


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Where the playground puts its files: short, as sockets are in it."""
    with tempfile.TemporaryDirectory(prefix="tg", dir="/tmp") as path:
        yield Path(path)


async def start(temporary: Path, *words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tangram", "playground", *words,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "driver"), "TMPDIR": str(temporary)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


@contextlib.asynccontextmanager
async def kept(temporary: Path, *words: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A playground that stays, and its kubeconfig; interrupted at the end, which must leave nothing."""
    process = await start(temporary, "--keep", *words)
    text = ""
    try:
        assert process.stdout is not None
        async with asyncio.timeout(TIMEOUT_S):
            while not (found := re.search(r"KUBECONFIG=(\S+)", text)):
                line = await process.stdout.readline()
                assert line, text
                text += line.decode()
        yield process, found[1]
        await interrupted(process, temporary)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def interrupted(process: asyncio.subprocess.Process, temporary: Path) -> None:
    """Ctrl-C: it ends with 130, and no process and no file of it is left."""
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(TIMEOUT_S):
        _, errors = await process.communicate()
    assert process.returncode == 130, errors.decode()
    assert b"Traceback" not in errors
    assert not leftovers(temporary)


def leftovers(temporary: Path) -> list[str]:
    """What a playground left: files in its directory, and processes that know of it."""
    found = [str(path) for path in temporary.iterdir()]
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if directory.name != str(os.getpid()) and str(temporary).encode() in b"".join(
                (directory / name).read_bytes() for name in ("cmdline", "environ")
            ):
                found.append((directory / "cmdline").read_text())
    return found


async def finished(temporary: Path, *words: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a run to its end."""
    process = await start(temporary, *words)
    async with asyncio.timeout(TIMEOUT_S):
        out, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), errors.decode()


async def kubectl(kubeconfig: str, *words: str, stdin: Any = None) -> str:
    process = await asyncio.create_subprocess_exec(
        str(KUBECTL), "--kubeconfig", kubeconfig, *words,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    async with asyncio.timeout(TIMEOUT_S):
        out, _ = await process.communicate(json.dumps(stdin).encode() if stdin else b"")
    assert process.returncode == 0, out.decode()
    return out.decode()


async def test_every_shipped_example_is_played_and_reported(temporary: Path) -> None:
    code, out, errors = await finished(temporary, "--output", "json")
    assert code == 0, errors
    report = json.loads(out)
    assert (report["apiVersion"], report["kind"]) == ("tangram/v1alpha1", "PlaygroundReport")
    assert report["kubeconfig"] == ""
    assert 0 < report["firstPodSeconds"] < report["totalSeconds"]
    assert [node["name"] for node in report["nodes"]] == ["node-1", "node-2"]
    assert [len(node["gpus"]) for node in report["nodes"]] == [8, 8]
    steps = {step["file"][:2]: step["pods"] for step in report["steps"]}
    count = {number: [len(pod["gpus"]) for pod in pods] for number, pods in steps.items()}
    assert count == {
        "01": [1], "02": [1], "03": [4], "04": [1, 1], "05": [1],
        "06": [1, 1], "07": [1, 1], "08": [4], "09": [0], "12": [1, 1], "13": [1, 1, 1, 1],
    }  # fmt: skip
    assert {pod["phase"] for pods in steps.values() for pod in pods} <= {"Running", "Succeeded", "Pending"}
    assert all(pod["why"] for pods in steps.values() for pod in pods)
    (waits,) = steps["09"]
    assert (waits["phase"], waits["node"]) == ("Pending", "")
    assert "16 GPUs on 2 nodes" in waits["why"][0]
    first, second = steps["04"]
    assert first["gpus"] == second["gpus"]
    assert all(len({pod["gpus"][0] for pod in steps[number]}) == 1 for number in ("12", "13"))
    products = {gpu["uuid"]: gpu["productName"] for node in report["nodes"] for gpu in node["gpus"]}
    assert "A100" in products[steps["02"][0]["gpus"][0]]
    holders = {gpu["uuid"]: gpu["holders"] for node in report["nodes"] for gpu in node["gpus"]}
    assert holders[first["gpus"][0]] == ["shared-first", "shared-second"]
    assert sum("linked-by-parameters" in names for names in holders.values()) == 4
    assert not leftovers(temporary)


async def test_it_tells_a_person_and_stays_for_kubectl(temporary: Path) -> None:
    example = ROOT / "deploy" / "examples"
    words = ["--machines", "t4x4", "--scenario", str(example / "05-two-containers-one-claim.yaml")]
    async with kept(temporary, *words) as (_, kubeconfig):
        pod = json.loads(await kubectl(kubeconfig, "get", "pod", "two-containers", "-o", "json"))
        assert pod["status"]["phase"] == "Running"
        shown = await kubectl(kubeconfig, "get", "pods,resourceclaims,nodes,resourceslices", "-o", "wide")
        assert re.search(r"pod/two-containers +3/3 +Running +0 +\d+s +node-1", shown), shown
        assert re.search(r"two-containers-gpu-\w+ +allocated,reserved", shown), shown
        described = await kubectl(kubeconfig, "describe", "resourceclaim")
        assert "Allocated" in described
        log = await kubectl(kubeconfig, "logs", "two-containers", "-c", "first")
        (uuids,) = re.findall(r"^TANGRAM_GPU_UUIDS=(GPU-\S+)$", log, re.MULTILINE)
        assert uuids in described
        assert len(re.findall(r"/dev/nvidia\d+", log)) == 1
        assert str(temporary) not in log
        assert "no GPU here" in await kubectl(kubeconfig, "logs", "two-containers", "-c", "without")
        for number in ("04", "07"):
            (path,) = example.glob(f"{number}-*.yaml")
            await kubectl(kubeconfig, "apply", "-f", str(path))
        await kubectl(kubeconfig, "rollout", "status", "deployment/gpu-deployment", "--timeout=30s")
        await kubectl(kubeconfig, "wait", "--for=jsonpath={.status.phase}=Running", "pod/shared-second")
        # All four are held; one that is given back goes to whoever waits.
        (path,) = example.glob("06-*.yaml")
        await kubectl(kubeconfig, "apply", "-f", str(path))
        await kubectl(kubeconfig, "delete", "pod", "two-containers")
        await kubectl(kubeconfig, "wait", "--for=condition=complete", "job/gpu-job", "--timeout=30s")
        claims = json.loads(await kubectl(kubeconfig, "get", "resourceclaims", "-o", "json"))["items"]
        assert len(claims) == 3


# How many lines it prints until it is starting, is ready, and has played three examples.
@pytest.mark.parametrize(
    ("number", "lines"),
    [
        (signal.SIGINT, 0), (signal.SIGINT, 1), (signal.SIGHUP, 2), (signal.SIGTERM, 45),
        (signal.SIGKILL, 1), (signal.SIGKILL, 2), (signal.SIGKILL, 45),
    ],
)  # fmt: skip
async def test_whatever_ends_it_nothing_is_left(temporary: Path, number: signal.Signals, lines: int) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:
        # Jobs in the background of a shell ignore SIGINT, and so would everything they start.
        signal.signal(number, signal.default_int_handler)
    process = await start(temporary)
    assert process.stdout is not None
    async with asyncio.timeout(TIMEOUT_S):
        for _ in range(lines):
            assert await process.stdout.readline()
    process.send_signal(number)
    async with asyncio.timeout(TIMEOUT_S):
        await process.communicate()
        if number is signal.SIGKILL:
            while leftovers(temporary):  # noqa: ASYNC110
                await asyncio.sleep(0.05)  # the guardian is no child of ours
    assert not leftovers(temporary)
    assert process.returncode in {130, -number}


async def test_a_bad_scenario_is_refused_before_anything_starts(temporary: Path, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: 7}")
    code, out, errors = await finished(temporary, "--scenario", str(file))
    assert (code, out) == (2, "")
    assert errors.startswith(f"error: {file}, document 1: ")
    assert "spec.containers of type" in errors
    assert "Traceback" not in errors


async def test_a_pod_that_cannot_run_here_fails_the_play(temporary: Path, tmp_path: Path) -> None:
    file = tmp_path / "image.yaml"
    file.write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: a, image: b}]}"
    )
    code, out, _ = await finished(temporary, "--machines", "gb10", "--scenario", str(file))
    assert code == 3
    assert "p: Failed on node-1" in out
    assert "containers[a].command: the playground pulls no images" in out
    assert not leftovers(temporary)


async def test_an_unknown_machine_is_refused(temporary: Path) -> None:
    code, _, errors = await finished(temporary, "--machines", "a100x8,abacus")
    assert code == 2
    assert "there is no machine abacus" in errors
    assert "h100x8" in errors


async def test_commands_about_its_nodes_are_those_of_a_real_one(temporary: Path) -> None:
    async with kept(temporary, "--machines", "a100x8", "--scenario", str(EXAMPLE)) as (_, kubeconfig):
        settings = Path(kubeconfig).with_name("node-1-settings.json")

        async def told(*words: str) -> tuple[int, dict[str, Any]]:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tangram", "node", *words, "--config", str(settings), "-o", "json",
                env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "driver")},
                stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            async with asyncio.timeout(TIMEOUT_S):
                out, _ = await process.communicate()
            assert process.returncode is not None
            found: dict[str, Any] = json.loads(out)
            return process.returncode, found

        code, status = await told("status")
        assert code == 0, status
        (held,) = (gpu for gpu in status["gpus"] if gpu["holders"])
        assert held["holders"][0]["pods"] == ["one-gpu"]
        code, drain = await told("drain-gpu", held["uuid"])
        assert (code, drain["outcome"], drain["published"]) == (0, "published", "drained")
        code, report = await told("doctor")
        assert [check for check in report["checks"] if check["result"] == "fail"] == []
        assert code == 0
