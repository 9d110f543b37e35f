"""The plugin at its sockets, against the stand-in for the kubelet."""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs
from tests.unit.kubeletplugin.widgets import Claims, WidgetDriver, reference

from tangram.base.clock import SystemClock
from tangram.base.errors import ConfigurationError
from tangram.kubeletplugin.health import DeviceHealth
from tangram.kubeletplugin.plugin import UPKEEP_INTERVAL_S, KubeletPlugin
from tangram.testing.clock import FakeClock
from tangram.testing.kubelet import FakeKubelet

DRIVER = "widgets.example.com"


class Node:
    """A kubelet directory on which plugins are started; stops those that a test leaves running."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.registry = directory / "plugins_registry"
        self.plugin_directory = directory / "plugins" / DRIVER
        self.claims = Claims()
        self.clock = FakeClock()
        self.running: list[KubeletPlugin] = []

    def plugin(self, driver: WidgetDriver | None = None, *, pod_uid: str = "") -> KubeletPlugin:
        return KubeletPlugin(
            driver_name=DRIVER,
            driver=driver or WidgetDriver(),
            client=self.claims,
            clock=self.clock,
            kubelet_directory=self.directory,
            pod_uid=pod_uid,
        )

    async def start(self, driver: WidgetDriver | None = None, *, pod_uid: str = "") -> KubeletPlugin:
        plugin = self.plugin(driver, pod_uid=pod_uid)
        await plugin.start()
        self.running.append(plugin)
        return plugin

    async def stop(self, plugin: KubeletPlugin, *, grace_s: float = 0) -> None:
        self.running.remove(plugin)
        await plugin.stop(grace_s=grace_s)

    def sockets(self) -> list[str]:
        return sorted(
            path.name for directory in (self.registry, self.plugin_directory) for path in directory.glob("*")
        )

    async def until_sockets(self, *names: str) -> None:
        async with asyncio.timeout(10):
            while self.sockets() != sorted(names):  # noqa: ASYNC110 - the file system has no event
                await asyncio.sleep(0.01)

    async def upkeep(self) -> None:
        """One round of every running plugin's upkeep."""
        await self.clock.until_sleeping(len(self.running))
        await self.clock.advance(UPKEEP_INTERVAL_S)
        await self.clock.until_sleeping(len(self.running))


def ready(plugin: KubeletPlugin) -> bool:
    return plugin.registered


async def until_ready(plugin: KubeletPlugin) -> None:
    async with asyncio.timeout(10):
        while not plugin.registered:  # noqa: ASYNC110 - what a kubelet sets, through a socket
            await asyncio.sleep(0.01)


@pytest.fixture
async def node(kubelet_directory: Path) -> AsyncIterator[Node]:
    node = Node(kubelet_directory)
    yield node
    for plugin in tuple(node.running):
        await node.stop(plugin)


async def test_serves_before_it_registers(node: Node) -> None:
    plugin = await node.start()
    assert not ready(plugin)
    assert node.sockets() == ["dra.sock", f"{DRIVER}-reg.sock"]
    async with FakeKubelet(node.directory) as kubelet:
        registered = await kubelet.plugin(DRIVER)
        assert registered.endpoint == str(node.plugin_directory / "dra.sock")
        assert node.plugin_directory.stat().st_mode & 0o777 == 0o750
        assert registered.service == "v1.DRAPlugin"
        assert registered.supported_versions == (
            "v1.DRAPlugin",
            "v1beta1.DRAPlugin",
            "v1.DRAResourceHealth",
            "v1alpha1.DRAResourceHealth",
        )
        await kubelet.until(DRIVER, instances=1)
        await until_ready(plugin)
        assert REGISTRY.get_sample_value("tangram_kubelet_registered") == 1
        await node.stop(plugin)
        await kubelet.until(DRIVER, instances=0)
    assert node.sockets() == []
    assert not ready(plugin)
    assert REGISTRY.get_sample_value("tangram_kubelet_registered") == 0


@pytest.mark.parametrize(
    ("versions", "share"),
    [(["v1.DRAPlugin", "v1beta1.DRAPlugin"], "1b4e28ba"), (["v1beta1.DRAPlugin"], None)],
)
async def test_prepare_and_unprepare_in_both_versions(
    node: Node, versions: list[str], share: str | None
) -> None:
    driver = WidgetDriver(share_id="1b4e28ba", request_names=("gpu/small",))
    await node.start(driver)
    node.claims.add(reference("a"))
    async with FakeKubelet(node.directory, versions=versions) as kubelet:
        answers = await kubelet.prepare(DRIVER, [reference("a"), reference("absent")])
        (device,) = answers["a"].devices
        assert device.request_names == ("gpu",)
        assert device.cdi_device_ids == ("example.com/widget=a",)
        assert device.share_id == share
        assert answers["absent"].error.startswith("prepare of claim default/claim-absent: ")
        assert driver.prepared == {"a"}
        assert await kubelet.unprepare(DRIVER, [reference("a"), reference("never-seen")]) == {
            "a": "",
            "never-seen": "",
        }
        assert driver.prepared == set()


async def test_bytes_that_are_no_request(node: Node) -> None:
    await node.start()
    node.claims.add(reference("a"))
    async with FakeKubelet(node.directory) as kubelet:
        plugin = await kubelet.plugin(DRIVER)
        raw = plugin.channel.unary_unary(
            "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
            request_serializer=bytes,
            response_deserializer=bytes,
        )
        with pytest.raises(grpc.aio.AioRpcError):
            await raw(b"\xff\xff\xff")
        assert (await kubelet.prepare(DRIVER, [reference("a")]))["a"].error == ""


async def test_the_kubelets_deadline_does_not_tear_a_prepare_apart(node: Node) -> None:
    driver = WidgetDriver(gates={"a": asyncio.Event()})
    node.claims.add(reference("a"))
    await node.start(driver)
    async with FakeKubelet(node.directory) as kubelet:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await kubelet.prepare(DRIVER, [reference("a")], timeout_s=0.2)
        assert failure.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert driver.started == ["prepare a"]
        again = asyncio.create_task(kubelet.prepare(DRIVER, [reference("a")]))
        driver.gates["a"].set()
        assert (await again)["a"].error == ""
    assert driver.started == driver.finished == ["prepare a", "prepare a"]


async def test_stop_refuses_new_calls_and_finishes_running_ones(node: Node) -> None:
    driver = WidgetDriver(gates={"a": asyncio.Event()})
    for uid in ("a", "b"):
        node.claims.add(reference(uid))
    plugin = await node.start(driver)
    async with FakeKubelet(node.directory) as kubelet:
        await kubelet.plugin(DRIVER)
        running = asyncio.create_task(kubelet.prepare(DRIVER, [reference("a")]))
        await driver.until(started=1)
        stopping = asyncio.create_task(node.stop(plugin, grace_s=60))
        await node.until_sockets(f"{DRIVER}-reg.sock")
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await kubelet.prepare(DRIVER, [reference("b")])
        assert failure.value.code() == grpc.StatusCode.UNAVAILABLE
        assert not stopping.done()
        driver.gates["a"].set()
        assert (await running)["a"].error == ""
        await stopping
        await kubelet.until(DRIVER, instances=0)
    assert node.sockets() == []
    assert driver.finished == ["prepare a"]


async def test_stop_does_not_wait_longer_than_its_grace(node: Node) -> None:
    driver = WidgetDriver(gates={"a": asyncio.Event()})
    node.claims.add(reference("a"))
    plugin = await node.start(driver)
    async with FakeKubelet(node.directory) as kubelet:
        running = asyncio.create_task(kubelet.prepare(DRIVER, [reference("a")]))
        await driver.until(started=1)
        await node.stop(plugin, grace_s=0.05)
        assert "interrupted: the plugin is stopping" in (await running)["a"].error
    assert driver.finished == []


async def test_rolling_update_leaves_no_gap(node: Node) -> None:
    """Claims are prepared one after the other while an old pod is replaced; none may fail."""
    node.claims.add(reference("a"))
    old = await node.start(pod_uid="11111111-aaaa")
    async with FakeKubelet(node.directory) as kubelet:
        await kubelet.plugin(DRIVER)

        async def prepare() -> None:
            answers = await kubelet.prepare(DRIVER, [reference("a")])
            assert answers["a"].error == ""

        await prepare()
        new = await node.start(pod_uid="22222222-bbbb")
        await kubelet.until(DRIVER, instances=2)
        await prepare()
        assert (await kubelet.plugin(DRIVER)).endpoint.endswith("dra-22222222-bbbb.sock")
        await node.stop(old)
        await prepare()
        await kubelet.until(DRIVER, instances=1)
        await prepare()
        await until_ready(new)
        assert node.sockets() == ["dra-22222222-bbbb.sock", f"{DRIVER}-22222222-bbbb-reg.sock"]


async def test_without_pod_uids_the_newer_process_takes_over(node: Node) -> None:
    """The older one's upkeep must not take the names back, nor its end remove the newer one's files."""
    node.claims.add(reference("a"))
    older = await node.start()
    async with FakeKubelet(node.directory) as kubelet:
        await kubelet.plugin(DRIVER)
        driver = WidgetDriver()
        newer = await node.start(driver)
        await until_ready(newer)
        await node.upkeep()
        assert not ready(older)
        await node.stop(older)
        assert (await kubelet.prepare(DRIVER, [reference("a")]))["a"].error == ""
        assert driver.prepared == {"a"}
        await kubelet.until(DRIVER, instances=1)
        await until_ready(newer)


async def test_a_refused_registration_is_an_error_and_tried_again(node: Node) -> None:
    failures = REGISTRY.get_sample_value("tangram_kubelet_registration_failures_total") or 0
    async with FakeKubelet(node.directory) as kubelet:
        kubelet.refuse = "endpoint already registered"
        with capture_logs() as logs:
            plugin = await node.start()
            await kubelet.until_refused(1)
        assert not ready(plugin)
        (refusal,) = [log for log in logs if log["event"] == "registration_refused_by_kubelet"]
        assert refusal["log_level"] == "error"
        assert refusal["error"] == "endpoint already registered"
        assert refusal["retry_in_s"] >= 1
        kubelet.refuse = ""
        assert not ready(plugin)
        await node.upkeep()
        await node.upkeep()
        await kubelet.until(DRIVER, instances=1)
        await until_ready(plugin)
    assert REGISTRY.get_sample_value("tangram_kubelet_registration_failures_total") == failures + 1


async def test_kubelet_restart(node: Node) -> None:
    node.claims.add(reference("a"))
    plugin = await node.start()
    async with FakeKubelet(node.directory) as kubelet:
        await kubelet.plugin(DRIVER)
        await kubelet.restart()
        await kubelet.until(DRIVER, instances=1)
        await until_ready(plugin)
        assert (await kubelet.prepare(DRIVER, [reference("a")]))["a"].error == ""


@pytest.mark.parametrize("removal", ["file", "registry", "plugin directory"])
async def test_removed_sockets_are_made_again(node: Node, removal: str) -> None:
    node.claims.add(reference("a"))
    plugin = await node.start()
    async with FakeKubelet(node.directory) as kubelet:
        await kubelet.plugin(DRIVER)
        if removal == "file":
            (node.registry / f"{DRIVER}-reg.sock").unlink()
        elif removal == "registry":
            shutil.rmtree(node.registry)
        else:
            shutil.rmtree(node.plugin_directory)
            assert (await kubelet.prepare(DRIVER, [reference("a")]))["a"].error == "", "still connected"
            await kubelet.restart()
        if removal != "plugin directory":
            assert not ready(plugin), "not ready while the kubelet cannot find us"
            await kubelet.until(DRIVER, instances=0)
        await node.upkeep()
        await kubelet.plugin(DRIVER)
        await until_ready(plugin)
        assert (await kubelet.prepare(DRIVER, [reference("a")]))["a"].error == ""


async def test_upkeep_survives_what_it_cannot_mend(node: Node) -> None:
    plugin = await node.start()
    async with FakeKubelet(node.directory) as kubelet:
        await kubelet.until(DRIVER, instances=1)
        (node.registry / f"{DRIVER}-reg.sock").unlink()
        shutil.rmtree(node.registry)
        node.registry.write_text("not a directory")
        await kubelet.until(DRIVER, instances=0)
        with capture_logs() as logs:
            await node.upkeep()
        assert "cannot serve at" in next(
            log["error"] for log in logs if log["event"] == "sockets_not_restored"
        )
        node.registry.unlink()
        await node.upkeep()
        await kubelet.until(DRIVER, instances=1)
        await until_ready(plugin)


SERVE_FOREVER = """
import asyncio, sys
from pathlib import Path
from tangram.base.clock import SystemClock
from tangram.kubeletplugin.plugin import KubeletPlugin
from tests.unit.kubeletplugin.widgets import Claims, WidgetDriver

async def main():
    await KubeletPlugin(
        kubelet_directory=Path(sys.argv[1]), driver_name=sys.argv[2], pod_uid=sys.argv[3],
        driver=WidgetDriver(), client=Claims(), clock=SystemClock(),
    ).start()
    print("started", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def serve_forever(node: Node, *, pod_uid: str) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SERVE_FOREVER, str(node.directory), DRIVER, pod_uid),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": "driver:."},
    )
    assert process.stdout is not None
    while await process.stdout.readline() != b"started\n":
        assert process.returncode is None
    return process


async def test_what_a_killed_process_left_is_replaced_and_cleared(node: Node) -> None:
    """kill -9: the same pod's next process takes the same names, another pod's files are cleared away."""
    node.claims.add(reference("a"))
    processes = [await serve_forever(node, pod_uid=pod_uid) for pod_uid in ("same-pod", "other-pod")]
    for process in processes:
        process.send_signal(signal.SIGKILL)
        await process.wait()
    assert len(node.sockets()) == 4
    async with FakeKubelet(node.directory) as kubelet:
        plugin = await node.start(pod_uid="same-pod")
        assert node.sockets() == ["dra-same-pod.sock", f"{DRIVER}-same-pod-reg.sock"]
        assert (await kubelet.prepare(DRIVER, [reference("a")]))["a"].error == ""
        await kubelet.until(DRIVER, instances=1)
        await until_ready(plugin)


@pytest.mark.parametrize("version", ["v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"])
async def test_health_stream(node: Node, version: str) -> None:
    plugin = await node.start()
    async with FakeKubelet(node.directory) as kubelet:
        stream = kubelet.health(DRIVER, version=version)
        first = asyncio.ensure_future(anext(stream))
        done, _ = await asyncio.wait({first}, timeout=0.1)
        assert not done, "silent until the driver has said something"
        plugin.set_health(
            [
                DeviceHealth(pool_name="p", device_name="a", health="healthy", updated_unix_s=1),
                DeviceHealth(
                    pool_name="p", device_name="b", health="unhealthy", updated_unix_s=1, message="ä" * 900
                ),
            ]
        )
        assert await first == {("p", "a"): "HEALTHY", ("p", "b"): "UNHEALTHY"}
        plugin.set_health([])
        assert await anext(stream) == {}
        stopping = asyncio.create_task(node.stop(plugin, grace_s=60))
        assert [lists async for lists in stream] == []
        await stopping  # which an open stream does not hold up


async def test_configuration_errors(kubelet_directory: Path) -> None:
    def plugin(**changes: object) -> KubeletPlugin:
        arguments: dict[str, object] = {
            "driver_name": DRIVER,
            "driver": WidgetDriver(),
            "client": Claims(),
            "clock": SystemClock(),
            "kubelet_directory": kubelet_directory,
        }
        return KubeletPlugin(**(arguments | changes))  # type: ignore[arg-type]

    for name in ("", "Upper.example.com", "../x", "a_b", "x" * 64, "a..b"):
        with pytest.raises(ConfigurationError, match="is not a DNS subdomain"):
            plugin(driver_name=name)
    for uid in ("../x", "a/b", "a b"):
        with pytest.raises(ConfigurationError, match="is not a uid"):
            plugin(pod_uid=uid)
    with pytest.raises(ConfigurationError, match="use a shorter kubelet directory"):
        plugin(kubelet_directory=Path("/" + "x" * 100))
    occupied = kubelet_directory / "file"
    occupied.write_text("")
    with pytest.raises(ConfigurationError, match="check that the directory exists"):
        await plugin(kubelet_directory=occupied).start()
