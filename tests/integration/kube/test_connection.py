"""Configuration and credentials: kubeconfig, in-cluster, rotation, TLS."""

import asyncio
import json
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from tangram.base.errors import ConfigurationError, NotFoundError, UnauthorizedError, UnreachableError
from tangram.kube import incluster
from tangram.kube.client import Client
from tangram.kube.resources import NODES
from tangram.testing.apiserver import FakeApiServer
from tangram.testing.clock import FakeClock


def config(server: str, user: dict[str, Any] | None = None, **cluster: Any) -> dict[str, Any]:
    return {
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


def write(path: Path, content: Any) -> str:
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return str(path)


async def list_nodes(kubeconfig: str = "", **options: Any) -> None:
    client = await Client.connect(kubeconfig=kubeconfig, user_agent="t", **options)
    try:
        await client.list_page(NODES)
    finally:
        await client.close()


async def test_kubeconfig_of_the_environment_and_home(
    server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", server.kubeconfig(tmp_path / "k"))
    await list_nodes()
    (tmp_path / ".kube").mkdir()
    server.kubeconfig(tmp_path / ".kube" / "config")
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("HOME", str(tmp_path))
    await list_nodes()
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", "a: b", config("ftp://x"), {**config("http://x"), "current-context": "y"}, "\x00"],
)
async def test_malformed_kubeconfig_is_a_configuration_error(tmp_path: Path, content: Any) -> None:
    with pytest.raises(ConfigurationError):
        await list_nodes(write(tmp_path / "k", content))


@pytest.mark.parametrize("host", ["[::1", "x:99999", "", "me:hush@x"])
async def test_a_url_that_names_no_server_or_has_secrets(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigurationError, match=r"clusters\[\].cluster.server") as caught:
        await list_nodes(write(tmp_path / "k", config(f"https://{host}", user={"token": "t"})))
    assert "hush" not in str(caught.value)


async def test_missing_kubeconfig(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such file; pass --kubeconfig"):
        await list_nodes(str(tmp_path / "none"))


async def test_unknown_context(server: FakeApiServer, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="other"):
        await list_nodes(server.kubeconfig(tmp_path / "k"), context="other")


async def test_exec_plugin(server: FakeApiServer, tmp_path: Path) -> None:
    credential = (
        '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"made"}}'
    )
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "/bin/echo",
        "args": [credential],
        "interactiveMode": "Never",
    }
    await list_nodes(write(tmp_path / "k", config(server.url, {"exec": plugin})))
    assert server.requests[-1].headers["authorization"] == "Bearer made"


async def test_token_file_is_read_again_every_minute(server: FakeApiServer, tmp_path: Path) -> None:
    token, clock = tmp_path / "token", FakeClock()
    token.write_text("first\n")
    path = write(tmp_path / "k", config(server.url, {"tokenFile": str(token)}))
    client = await Client.connect(kubeconfig=path, user_agent="t", clock=clock)
    try:
        await client.list_page(NODES)
        token.write_text("second\n")
        await clock.advance(59)
        await client.list_page(NODES)
        await clock.advance(1)
        await client.list_page(NODES)
        token.unlink()  # rotation in progress: the old one is kept
        await clock.advance(60)
        await client.list_page(NODES)
    finally:
        await client.close()
    sent = [request.headers["authorization"] for request in server.requests]
    assert sent == ["Bearer first", "Bearer first", "Bearer second", "Bearer second"]


async def test_token_file_is_read_again_after_401_once(server: FakeApiServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    path = write(tmp_path / "k", config(server.url, {"tokenFile": str(token)}))
    client = await Client.connect(kubeconfig=path, user_agent="t", clock=FakeClock())
    try:
        token.write_text("second")
        server.faults.answer(401, times=3)
        # All three carry the first token; one reads the file, all ask again.
        answers = await asyncio.gather(*(client.list_page(NODES) for _ in range(3)))
        assert len(answers) == 3
        assert [request.headers["authorization"] for request in server.requests] == (
            ["Bearer first"] * 3 + ["Bearer second"] * 3
        )
        server.faults.answer(401)
        with pytest.raises(UnauthorizedError, match="check the token"):
            await client.list_page(NODES)  # nothing new in the file: no third attempt
        assert len(server.requests) == 7
    finally:
        await client.close()


# --- TLS ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.crt, server.{crt,key} for 127.0.0.1, client.{crt,key}."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: no certificates can be made")
    where = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=where, check=True, capture_output=True)

    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(*new, "-x509", "-days", "2", "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=ca")
    for name in ("server", "client"):
        openssl(*new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (where / f"{name}.ext").write_text("subjectAltName=IP:127.0.0.1\n")
        openssl(
            *("x509", "-req", "-days", "2", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key"),
            *("-CAcreateserial", "-extfile", f"{name}.ext", "-out", f"{name}.crt"),
        )
    return where


@pytest.fixture
async def tls_server(certificates: Path) -> AsyncIterator[str]:
    """A server that asks for a client certificate and knows nothing."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificates / "ca.crt"))
    context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
    context.verify_mode = ssl.CERT_REQUIRED
    runner = web.AppRunner(web.Application())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    yield f"https://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_client_certificate_and_cluster_ca(
    tls_server: str, certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.setenv(variable, "/nowhere")
    user = {
        "client-certificate": str(certificates / "client.crt"),
        "client-key": str(certificates / "client.key"),
    }
    authority = {"certificate-authority": str(certificates / "ca.crt")}
    with pytest.raises(NotFoundError):  # an answer: TLS went well in both directions
        await list_nodes(write(tmp_path / "k", config(tls_server, user, **authority)))
    with pytest.raises(UnreachableError):
        await list_nodes(write(tmp_path / "k", config(tls_server, {"token": "t"}, **authority)))
    with pytest.raises(UnreachableError, match=r"(?i)certificate"):
        await list_nodes(write(tmp_path / "k", config(tls_server, user)))


async def test_unusable_certificate_is_a_configuration_error(tmp_path: Path) -> None:
    authority = tmp_path / "ca.crt"
    authority.write_text("no certificate")
    path = write(
        tmp_path / "k", config("https://x", {"token": "t"}, **{"certificate-authority": str(authority)})
    )
    with pytest.raises(ConfigurationError, match="cannot be used"):
        await list_nodes(path)


async def test_in_cluster(
    tls_server: str, certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, port = tls_server.removeprefix("https://").split(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    monkeypatch.setattr(incluster, "SERVICE_ACCOUNT", tmp_path)
    for missing in ("ca.crt", "token"):
        with pytest.raises(ConfigurationError, match=f"{missing}.*mount the service account token"):
            await Client.connect(user_agent="t")
        (tmp_path / "ca.crt").write_bytes((certificates / "ca.crt").read_bytes())
    (tmp_path / "token").write_text("\n")
    with pytest.raises(ConfigurationError, match="token is empty"):
        await Client.connect(user_agent="t")
    (tmp_path / "token").write_text("token\n")
    client = await Client.connect(user_agent="t")
    assert client.server == tls_server
    with pytest.raises(UnreachableError):  # no client certificate in a pod
        await client.list_page(NODES)
    await client.close()


async def test_in_cluster_with_a_rotated_token(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
    (tmp_path / "ca.crt").write_bytes((certificates / "ca.crt").read_bytes())
    (tmp_path / "token").write_text("first\n")
    monkeypatch.setattr(incluster, "SERVICE_ACCOUNT", tmp_path)
    clock = FakeClock()
    async with FakeApiServer(ssl_context=context) as server:
        host, port = server.url.removeprefix("https://").split(":")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        client = await Client.connect(user_agent="t", clock=clock)
        try:
            await client.list_page(NODES)
            (tmp_path / "token").write_text("second\n")
            await clock.advance(60)
            await client.list_page(NODES)
        finally:
            await client.close()
        sent = [request.headers["authorization"] for request in server.requests]
    assert sent == ["Bearer first", "Bearer second"]


@pytest.mark.parametrize(("host", "place"), [("10.0.0.1", "10.0.0.1:443"), ("fd00::1", "[fd00::1]:443")])
def test_address_in_cluster(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, place: str
) -> None:
    (tmp_path / "ca.crt").write_bytes((certificates / "ca.crt").read_bytes())
    monkeypatch.setattr(incluster, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    assert incluster.server().url == f"https://{place}"
    monkeypatch.delenv("KUBERNETES_SERVICE_PORT")
    with pytest.raises(ConfigurationError, match="KUBERNETES_SERVICE_PORT is not set"):
        incluster.server()


async def test_exec_plugin_is_asked_again_only_when_its_credential_ran_out_or_was_refused(
    server: FakeApiServer, tmp_path: Path
) -> None:
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "made", "expirationTimestamp": "2999-01-01T00:00:00Z"},
    }
    script = f"echo asked >> {tmp_path}/log; echo '{json.dumps(credential)}'"
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "/bin/sh",
        "args": ["-c", script],
    }
    clock = FakeClock()
    path = write(tmp_path / "k", config(server.url, {"exec": plugin}))
    client = await Client.connect(kubeconfig=path, user_agent="t", clock=clock)

    def asked() -> int:
        return len((tmp_path / "log").read_text().splitlines())

    try:
        for _ in range(3):
            await clock.advance(60)
            await client.list_page(NODES)
        assert asked() == 1
        server.faults.answer(401)
        with pytest.raises(UnauthorizedError):
            await client.list_page(NODES)
        assert asked() == 2
    finally:
        await client.close()
