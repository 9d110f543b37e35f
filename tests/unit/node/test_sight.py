"""What is seen of a node from beside its plugin, and the status made of it."""

import asyncio
import json
import socket
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.unit.model.boards import machine

from tangram.base.clock import SystemClock
from tangram.base.errors import ForbiddenError, NotFoundError, StateError, UnreachableError
from tangram.cli.nodestatus import as_text
from tangram.kube.client import Client
from tangram.kube.resources import RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from tangram.model.gpu import GpuUuid
from tangram.node import sight
from tangram.node.drains import Drain
from tangram.node.held import Contents, HeldClaim, HeldDevice
from tangram.node.inventory import Inventory, Policy
from tangram.node.settings import NodeSettings
from tangram.node.sight import Api, Files, Gpus, Plugin, Published, Sight
from tangram.node.status import GpuStatus, known_gpus, node_status

T4S = machine("t4-x4")
FIRST, SECOND = T4S.gpus[0].uuid, T4S.gpus[1].uuid
OTHER = GpuUuid("GPU-99999999-0000-4000-8000-000000000001")


def device(uuid: str, *, healthy: bool = True, drained: bool = False, parent: str = "") -> dict[str, Any]:
    attributes: dict[str, Any] = {"uuid": {"string": uuid}, "healthy": {"bool": healthy}}
    if parent:
        attributes["parentUUID"] = {"string": parent}
    taints = [{"key": "gpu.resource.admin/drained", "effect": "NoSchedule"}] if drained else []
    return {"name": f"d-{uuid.lower()}", "attributes": attributes, "taints": taints}


def slice_of(*devices: dict[str, Any], generation: int = 1) -> dict[str, Any]:
    pool = {"name": "p", "generation": generation, "resourceSliceCount": 1}
    return {"metadata": {"name": "s"}, "spec": {"driver": "d", "pool": pool, "devices": list(devices)}}


class Server:
    """Pages of slices, and claims by name."""

    def __init__(self, *pages: list[dict[str, Any]], claims: Mapping[str, Any] | None = None) -> None:
        self._pages, self._claims = pages, claims or {}

    async def list_page(
        self, resource: Resource, *, limit: int, continue_token: str, field_selector: str
    ) -> bytes:
        assert (resource, field_selector) == (
            RESOURCE_SLICES,
            "spec.driver=gpu.resource.admin,spec.nodeName=node-1",
        )
        number = int(continue_token or 0)
        more = str(number + 1) if number + 1 < len(self._pages) else ""
        return json.dumps({"metadata": {"continue": more}, "items": self._pages[number] or None}).encode()

    async def get(self, resource: Resource, *, name: str, namespace: str) -> bytes:
        assert (resource, namespace) == (RESOURCE_CLAIMS, "ns")
        found = self._claims[name]
        if isinstance(found, Exception):
            raise found
        return json.dumps(found).encode()


async def published(*pages: list[dict[str, Any]]) -> dict[GpuUuid, Published]:
    return await sight.published_devices(cast("Client", Server(*pages)), "node-1")


class TestPublished:
    async def test_all_pages_of_the_newest_generation(self) -> None:
        assert await published([]) == {}
        assert await published(
            [slice_of(device("a"), generation=2), slice_of(device("old"), generation=1)],
            [slice_of(device("b", healthy=False), generation=2)],
            [slice_of(device("c", healthy=False, drained=True), generation=2), slice_of(generation=2)],
        ) == {"a": "healthy", "b": "unhealthy", "c": "drained"}

    async def test_a_gpu_is_told_by_all_its_devices(self) -> None:
        """While slices are written, what may still be given away counts."""
        mig = device("none", healthy=False, drained=True, parent="a")
        assert await published([slice_of(device("a"), mig)]) == {"a": "healthy"}
        assert await published([slice_of(mig)]) == {"a": "drained"}

    async def test_what_is_no_device_of_ours_is_left_out(self) -> None:
        strange: list[dict[str, Any]] = [
            {"name": "x"},
            {"name": "y", "attributes": {"uuid": {"int": 7}}},
            {"name": "z", "attributes": {"uuid": {"string": "a"}}},
        ]
        assert await published([slice_of(*strange)]) == {"a": "healthy"}


def held(name: str, *uuids: str) -> HeldClaim:
    devices = tuple(
        HeldDevice(pool="p", device=f"gpu-{uuid[-4:]}", uuid=uuid, request_names=("r",)) for uuid in uuids
    )
    return HeldClaim(namespace="ns", name=name, uid=name, boot_id="b", phase="prepared", devices=devices)


async def test_the_pods_of_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    def claim(uid: str, *names: str) -> dict[str, Any]:
        users: list[dict[str, str]] = [{"resource": "pods", "name": name, "uid": name} for name in names]
        users.append({"resource": "jobs", "apiGroup": "batch", "name": "no-pod", "uid": "u"})
        return {"metadata": {"name": "c", "uid": uid}, "spec": {}, "status": {"reservedFor": users}}

    server = Server(
        [],
        claims={
            "a": claim("a", "one", "two"),
            "b": claim("another"),
            "c": NotFoundError("no", status=404),
            "d": ForbiddenError("no", status=403),
        },
    )

    async def connect(**_: Any) -> Any:
        return server

    async def close() -> None: ...

    monkeypatch.setattr(Client, "connect", connect)
    monkeypatch.setattr(server, "close", close, raising=False)
    claims = [held(name, FIRST) for name in "abcd"]
    found = await sight.look_at_api(NodeSettings(node_name="node-1"), claims, clock=SystemClock())
    assert found == Api(published={}, pods={"a": ("one", "two"), "b": (), "c": ()})


async def test_an_api_server_that_does_not_answer_costs_what_it_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sight, "API_DEADLINE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = {
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{silent.getsockname()[1]}"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {}}],
            "current-context": "c",
        }
        (tmp_path / "kubeconfig").write_text(json.dumps(config))
        settings = NodeSettings(node_name="node-1", kubeconfig=str(tmp_path / "kubeconfig"))
        found = await sight.look_at_api(settings, [held("a", FIRST)], clock=SystemClock())
    assert isinstance(found.problem, UnreachableError)
    assert "did not answer within 0.2 s" in found.problem.cause
    assert (found.published, found.pods) == (None, {})


class TestPlugin:
    @pytest.fixture
    def settings(self) -> Iterator[NodeSettings]:
        with tempfile.TemporaryDirectory(prefix="tg") as name:
            made = NodeSettings(node_name="node-1", kubelet_dir=name, metrics_address="")
            sight.plugin_directory(made).mkdir(parents=True)
            yield made

    async def state(self, settings: NodeSettings, answer: bytes | None = None) -> Plugin:
        """With a plugin that listens; over HTTP it gives that answer, or none at all."""

        asked: list[asyncio.StreamWriter] = []

        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append(writer)
            if answer is not None:
                writer.write(answer)
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(sight.plugin_directory(settings) / "dra-1.sock"))
            listening.listen()
            try:
                told = NodeSettings(
                    node_name="node-1", kubelet_dir=settings.kubelet_dir, metrics_address=f"127.0.0.1:{port}"
                )
                return await sight.look_at_plugin(told, clock=SystemClock())
            finally:
                server.close()
                for writer in asked:
                    writer.close()
                    await writer.wait_closed()

    async def test_ready(self, settings: NodeSettings) -> None:
        answer = b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nok\n"
        assert await self.state(settings, answer) == Plugin(state="ready")

    async def test_waiting(self, settings: NodeSettings) -> None:
        text = b"waiting for registration with the kubelet\nwaiting for the GPUs: x\n"
        answer = b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text)
        assert await self.state(settings, answer) == Plugin(
            state="waiting", waiting_for=("registration with the kubelet", "the GPUs: x")
        )

    async def test_not_answering(self, settings: NodeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
        assert await self.state(settings, b"nonsense\r\n\r\n") == Plugin(state="not answering")
        monkeypatch.setattr(sight, "_PLUGIN_DEADLINE_S", 0.2)
        (sight.plugin_directory(settings) / "dra-1.sock").unlink()
        assert await self.state(settings) == Plugin(state="not answering")

    async def test_an_answer_that_is_no_text(self, settings: NodeSettings) -> None:
        """Another program has its port."""
        answer = b"HTTP/1.0 503 Not Ours\r\nContent-Length: 1\r\n\r\n\xff"
        assert await self.state(settings, answer) == Plugin(state="not answering")

    async def test_no_address_and_no_process(self, settings: NodeSettings) -> None:
        clock = SystemClock()
        assert await sight.look_at_plugin(settings, clock=clock) == Plugin(state="not running")
        path = sight.plugin_directory(settings) / "dra.sock"
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            listening.listen()
            assert await sight.look_at_plugin(settings, clock=clock) == Plugin(state="serving")
        assert await sight.look_at_plugin(settings, clock=clock) == Plugin(state="not running")


class TestStatus:
    def gpu(self, seen: Sight, uuid: str = FIRST) -> GpuStatus:
        status = node_status(seen, node_name="node-1", hardware="nvml")
        (found,) = (gpu for gpu in status.gpus if gpu.uuid == uuid)
        return found

    def seen(self, **more: Any) -> Sight:
        published: dict[GpuUuid, Published] = {gpu.uuid: "healthy" for gpu in T4S.gpus}
        inventory = Inventory(machine=T4S, **more)
        return Sight(
            gpus=Gpus(inventory=inventory), plugin=Plugin(state="ready"), api=Api(published=published)
        )

    def is_well(self, seen: Sight) -> bool:
        return node_status(seen, node_name="node-1", hardware="nvml").is_well

    def test_healthy(self) -> None:
        assert self.gpu(self.seen()).state == "healthy"
        assert self.is_well(self.seen())

    def test_a_slice_steers_no_terminal(self) -> None:
        published: dict[GpuUuid, Published] = {GpuUuid("GPU-1\x1b[2J"): "healthy"}
        seen = replace(self.seen(), api=Api(published=published))
        assert "GPU-1\\x1b[2J" in as_text(node_status(seen, node_name="n", hardware="nvml"))

    def test_unhealthy_and_warning(self) -> None:
        seen = self.seen(unhealthy={FIRST: "XID 79"}, warnings={FIRST: "slow", SECOND: "slow"})
        assert (self.gpu(seen).state, self.gpu(seen).cause) == ("unhealthy", "XID 79")
        assert self.gpu(seen, SECOND).state == "warning"
        assert not self.is_well(seen)
        assert self.is_well(self.seen(warnings={SECOND: "slow"}))

    def test_an_mps_daemon_that_serves_nobody(self) -> None:
        failing = {FIRST: "the MPS daemon died"}
        seen = self.seen(mps_failing=failing, warnings={FIRST: "slow"}, policy=Policy(kinds=("gpu", "mps")))
        assert self.gpu(seen).state == "warning"
        assert self.gpu(seen).cause == "slow; no shares by MPS: the MPS daemon died"
        assert self.gpu(self.seen(mps_failing=failing)).state == "healthy"  # where none is offered

    def test_what_only_the_plugin_has_heard(self) -> None:
        published: dict[GpuUuid, Published] = {FIRST: "unhealthy"}
        seen = replace(self.seen(), api=Api(published=published))
        assert self.gpu(seen).state == "unhealthy"
        # Slices of a plugin that is dead may be old.
        assert self.gpu(replace(seen, plugin=Plugin(state="not running"))).state == "healthy"

    @pytest.mark.parametrize(
        ("state", "cause"),
        [("drained", ""), ("unhealthy", ""), (None, ""), ("healthy", "still published as healthy")],
    )
    def test_drained(self, state: Published | None, cause: str) -> None:
        published = {FIRST: state} if state else {}
        seen = replace(
            self.seen(), api=Api(published=published), files=Files(drains={FIRST: Drain(reason="fan")})
        )
        found = self.gpu(seen)
        assert (found.state, found.cause, found.drained) == ("drained", cause, Drain(reason="fan"))
        assert self.is_well(seen)

    def test_gone_and_unknown(self) -> None:
        claim = held("a", OTHER, FIRST)
        seen = replace(self.seen(), files=Files(held=Contents(claims={"a": claim})))
        assert (self.gpu(seen, OTHER).state, self.gpu(seen, OTHER).index) == ("gone", None)
        assert self.gpu(seen).holders[0].name == "a"
        blind = replace(seen, gpus=Gpus(problem="the driver hangs"))
        assert {self.gpu(blind, uuid).state for uuid in known_gpus(blind)} == {"unknown"}
        assert set(known_gpus(blind)) == {OTHER, *(gpu.uuid for gpu in T4S.gpus)}
        assert not self.is_well(blind)

    def test_gpus_that_do_not_answer(self) -> None:
        failing = replace(T4S, gpus=T4S.gpus[1:], failures={FIRST: "GPU is lost", "index 7": "no UUID"})
        seen = Sight(gpus=Gpus(inventory=Inventory(machine=failing)), plugin=Plugin(state="ready"))
        assert (self.gpu(seen).state, self.gpu(seen).cause) == ("unhealthy", "GPU is lost")
        problems = node_status(seen, node_name="n", hardware="nvml").problems
        assert [problem.cause for problem in problems] == ["the GPU of index 7 does not answer: no UUID"]

    def test_every_problem_says_what_to_do(self) -> None:
        for plugin in (
            Plugin(state="not running"),
            Plugin(state="not answering"),
            Plugin(state="waiting", waiting_for=("x",)),
        ):
            status = node_status(Sight(plugin=plugin, gpus=Gpus(problem="p")), node_name="n", hardware="nvml")
            assert len(status.problems) == 2
            assert all(problem.next_step for problem in status.problems)


def test_a_directory_that_is_out_of_reach_is_told() -> None:
    """As the kubelet's is for ordinary users; a name that is too long fails alike, for root too."""
    settings = NodeSettings(node_name="n", kubelet_dir=f"/{'x' * 300}")
    with pytest.raises(StateError, match="cannot be looked at: File name too long") as caught:
        sight.look_at_files(settings)
    assert "as root" in caught.value.next_step
