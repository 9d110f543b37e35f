"""/metrics, /healthz and /readyz over a real socket."""

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter

from tangram.base.errors import ConfigurationError
from tangram.base.serving import HttpServer, parse_address


async def get(port: int, path: str, accept: str = "") -> tuple[int, str, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}", headers={"Accept": accept}) as response,
    ):
        return response.status, response.headers["Content-Type"], await response.text()


async def test_it_serves_metrics_health_and_readiness() -> None:
    registry = CollectorRegistry()
    Counter("tangram_sample", "a sample", registry=registry).inc(3)
    waiting = ["the kubelet", "GPUs"]
    async with HttpServer("127.0.0.1:0", waiting_for=lambda: waiting, registry=registry) as server:
        status, kind, text = await get(server.port, "/metrics")
        assert status == 200
        assert kind.startswith("text/plain")
        assert "tangram_sample_total 3.0" in text
        _, kind, text = await get(server.port, "/metrics", "application/openmetrics-text; version=1.0.0")
        assert kind.startswith("application/openmetrics-text")
        assert text.endswith("# EOF\n")
        for path, wanted in (("/healthz", 200), ("/readyz", 503)):
            status, _, text = await get(server.port, path)
            assert (status, text) == (wanted, "waiting for the kubelet\nwaiting for GPUs\n")
        waiting.clear()
        for path in ("/healthz", "/readyz"):
            status, _, text = await get(server.port, path)
            assert (status, text) == (200, "ok\n")
        assert (await get(server.port, "/other"))[0] == 404
        port = server.port
    with pytest.raises(aiohttp.ClientConnectionError):
        await get(port, "/healthz")


async def test_an_address_in_use_is_a_configuration_error() -> None:
    async with HttpServer("127.0.0.1:0", waiting_for=list) as first:
        second = HttpServer(f"127.0.0.1:{first.port}", waiting_for=list)
        with pytest.raises(ConfigurationError, match=rf"on 127.0.0.1:{first.port}: .*in use") as caught:
            await second.__aenter__()
        assert "--metrics-address" in caught.value.next_step


@pytest.mark.parametrize("host", ["192.0.2.1", "x" * 64, "a..b"])
async def test_an_unknown_host_is_a_configuration_error(host: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot serve metrics and health on"):
        await HttpServer(f"{host}:0", waiting_for=list).__aenter__()


async def test_no_address_serves_nothing() -> None:
    async with HttpServer("", waiting_for=list) as server:
        assert server.port == 0


@pytest.mark.parametrize(
    ("address", "expected"),
    [(":9464", ("", 9464)), ("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:80", ("::1", 80)), ("h:1", ("h", 1))],
)
def test_addresses(address: str, expected: tuple[str, int]) -> None:
    assert parse_address(address) == expected


@pytest.mark.parametrize("address", [":", ":x", ":65536", "::1:80", ":-1", ":٣"])
def test_malformed_addresses(address: str) -> None:
    with pytest.raises(ConfigurationError, match="is not an address"):
        parse_address(address)
