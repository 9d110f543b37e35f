"""The parts of the benches that can be wrong without anybody noticing: reading, reckoning, rendering."""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchlib import references
from benchlib.arguments import positive
from benchlib.benches import conformance, e2e, memory, prepare, start
from benchlib.benches.tables import amount, goal_list, prose
from benchlib.processes import parse_smaps
from benchlib.results import Goal, Machine, Result
from benchlib.series import summarize
from tangram.kube.resources import PODS, RESOURCE_CLAIMS, Resource

SMAPS = """\
55d0c0000000-55d0c0001000 r-xp 00000000 08:01 42                         /usr/lib/libfirst.so.1
Size:                  8 kB
Rss:                   8 kB
Pss:                   4 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
55d0c0001000-55d0c0002000 rw-p 00001000 08:01 42                         /usr/lib/libfirst.so.1
Rss:                  12 kB
Pss:                  12 kB
Anonymous:             4 kB
7f0000000000-7f0000100000 rw-p 00000000 00:00 0                          [heap]
Rss:                 100 kB
Pss:                 100 kB
Anonymous:           100 kB
7f0000200000-7f0000300000 rw-p 00000000 00:00 0
Rss:                  20 kB
Pss:                  10 kB
Anonymous:            20 kB
"""


def test_memory_by_kind_of_page() -> None:
    found = parse_smaps(SMAPS)
    assert found.resident_bytes == 140 * 1024
    assert found.proportional_bytes == 126 * 1024
    assert found.anonymous_bytes == 124 * 1024
    assert found.by_file_bytes == {"libfirst.so.1": 16 * 1024}  # without the page that was written
    assert found.resident_bytes == found.anonymous_bytes + sum(found.by_file_bytes.values())


def test_this_process_has_memory() -> None:
    found = parse_smaps(Path("/proc/self/smaps").read_text(encoding="utf-8"))
    assert found.resident_bytes >= found.anonymous_bytes + sum(found.by_file_bytes.values())
    assert found.anonymous_bytes > 2**20
    assert any(name.startswith("libc") for name in found.by_file_bytes)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.12345, "0.123"), (1.0456, "1.05"), (12.345, "12.3"), (99.97, "100"), (1234.5, "1234")],
)
def test_amounts_have_three_digits(value: float, text: str) -> None:
    assert amount(value) == text


def test_prose_is_broken_anew() -> None:
    lines = prose("word " * 60 + "a-word-with-hyphens\n   and more").split("\n")
    assert max(len(line) for line in lines) <= 120
    assert " ".join(lines).endswith("a-word-with-hyphens and more")


def result(bench: Any, names: dict[str, float], **details: Any) -> Result:
    return Result(
        bench=bench.__name__.rpartition(".")[2],
        parameters={"samples": 2, "prepares": 100, "kubernetes": "1.36.3"},
        series={name: summarize([value, value], unit="ms") for name, value in names.items()},
        goals=[Goal(name="a goal", value=2.5, limit=3, unit="ms")],
        details=details,
        commit="abc1234",
        measured_at="2026-01-01T00:00:00Z",
        duration_seconds=1.0,
        machine=Machine(cpu="a CPU", cpus=2, memory_bytes=2**34, kernel="6.1", os="an OS", load=(0, 1)),
        versions={},
    )


def test_sections_show_what_was_measured() -> None:
    rows = prepare._LABELS | prepare._KINDS_LABELS
    shown = prepare.section(
        {"": result(prepare, dict.fromkeys(rows, 4.56), request_bytes=61, answer_bytes=177)}
    )
    assert "61 bytes there, 177 back" in " ".join(shown.split())
    assert "together 13.7 ms of 4.56 ms" in " ".join(shown.split())
    assert shown.count("| 4.56 ms | 4.56 | 0 | 2 |") == len(rows)
    assert "a goal: **2.50 ms**, goal 3 ms: met" in shown

    shown = start.section({"": result(start, {**dict.fromkeys(start._LABELS, 100.0), "start": 250.0})})
    assert "Ratio to the bare gRPC server: 2.50." in shown

    imports = [{"module": "python", "ms": 0.0, "mib": 10.0}, {"module": "grpc", "ms": 41.0, "mib": 9.5}]
    labels = dict.fromkeys(memory._LABELS, 60.0)
    details = {"imports": imports, "parts": {"anonymous": 40.0}, "looking": {"devices": 224, "share": 0.0171}}
    shown = memory.section({"": result(memory, labels, **details)})
    assert "are 224 devices" in " ".join(shown.split())
    assert "takes 1.7 % of a core" in " ".join(shown.split())
    assert "| `grpc` | 9.50 MiB | 41.0 ms |" in shown
    assert "anonymous 40.0 MiB" in shown

    series = {f"{kind}_{name}": 50.0 for kind in e2e._NODES for name in e2e._STEPS}
    shown = e2e.section({"": result(e2e, {**series, "controller_allocated": 75.0})})
    assert "controller takes 25.0 ms, kube-scheduler 0 ms" in " ".join(shown.split())


def test_goals_without_a_unit() -> None:
    goals = [Goal(name="ratio", value=1.2, limit=1.3, unit="")]
    shown = goal_list(msgspec.structs.replace(result(e2e, {}), goals=goals))
    assert shown == "- ratio: **1.20**, goal 1.3: met"


class ScriptedClient:
    """A client whose cluster does one thing after the other."""

    def __init__(self) -> None:
        self._events: dict[Resource, asyncio.Queue[bytes]] = {
            PODS: asyncio.Queue(),
            RESOURCE_CLAIMS: asyncio.Queue(),
        }

    async def list_page(self, _resource: Resource, **_: Any) -> bytes:
        return b'{"metadata": {"resourceVersion": "1"}}'

    async def watch(self, resource: Resource, **_: Any) -> AsyncIterator[bytes]:
        while True:
            yield await self._events[resource].get()

    async def create(self, _resource: Resource, pod: dict[str, Any], **_: Any) -> None:
        claim = {"metadata": {"name": "p-gpu", "ownerReferences": [{"name": "p"}]}}
        pod = {**pod, "status": {"phase": "Pending"}}
        self._tell(PODS, "ADDED", pod)
        self._tell(RESOURCE_CLAIMS, "ADDED", claim)
        self._tell(RESOURCE_CLAIMS, "MODIFIED", {**claim, "status": {"allocation": {"devices": {}}}})
        bound = {**pod, "spec": {**pod["spec"], "nodeName": "node-1"}}
        self._tell(PODS, "MODIFIED", bound)
        self._tell(PODS, "MODIFIED", {**bound, "status": {"phase": "Running"}})

    async def delete(self, _resource: Resource, *, name: str, **_: Any) -> None:
        claim = {"metadata": {"name": "p-gpu", "ownerReferences": [{"name": "p"}]}}
        self._tell(PODS, "DELETED", {"metadata": {"name": name}})
        self._tell(RESOURCE_CLAIMS, "DELETED", claim)

    def _tell(self, resource: Resource, change: str, item: dict[str, Any]) -> None:
        self._events[resource].put_nowait(msgspec.json.encode({"type": change, "object": item}))


async def test_the_steps_of_a_pod() -> None:
    client: Any = ScriptedClient()
    async with e2e._Observer(client, "bench") as observer:
        found = await observer.pod("p", node="node-1")
    assert found.keys() == set(e2e._STEPS)
    assert 0 < found["claim"] <= found["allocated"]
    assert 0 < found["bound"] <= found["running"]


@pytest.mark.parametrize("text", ["0", "-5", "x", "1.5", ""])
def test_how_many_is_a_number_above_0(text: str) -> None:
    parser = argparse.ArgumentParser()
    conformance.configure(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--cases", text])
    assert positive("7") == 7


def test_of_few_problems_one_may_be_given_up_by_chance() -> None:
    limit = conformance.most_given_up
    assert [limit(cases) >= 1000 / cases for cases in (1, 100, 1_000)] == [False, True, True]
    assert limit(1_000) < 5
    assert limit(100_000) == 1


def test_no_module_hides_one_of_the_standard_library() -> None:
    """references.py is run by its path: what stands beside it is found first."""
    names = {path.stem for path in Path(references.__file__).parent.glob("*.py")}
    assert names & sys.stdlib_module_names == set()
