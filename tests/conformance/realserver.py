"""A bare kube-apiserver on its etcd: the API without controllers, scheduler or nodes, and without admission
plugins that need them, so that an answer depends on the question alone."""

import contextlib
import json
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clusterlib.binaries import ensure_binaries

_TOKEN = "conformance-admin"
_START_TIMEOUT_S = 120.0
# Each needs a controller or sets what depends on the machine.
_ADMISSION_OFF = "ServiceAccount,NodeRestriction,TaintNodesByCondition,RuntimeClass"


@dataclass(frozen=True, slots=True, kw_only=True)
class RealServer:
    """`url` is https with a certificate of its own making: use `tls`. `uncached_url` is a second API server
    on the same etcd, without the watch cache, which would hide that etcd forgets."""

    url: str
    uncached_url: str
    token: str
    etcd_url: str
    tls: ssl.SSLContext


@contextlib.contextmanager
def running(version: str, *, base_port: int, directory: Path) -> Iterator[RealServer]:
    """The API server of a Kubernetes `version`, e.g. 1.36.3; ports `base_port` to + 3."""
    binaries = ensure_binaries(version)
    pki = directory / "pki"
    pki.mkdir(parents=True)
    etcd_url, peer_url = (f"http://127.0.0.1:{base_port + offset}" for offset in (1, 2))
    key, tokens = pki / "service-accounts.key", directory / "tokens.csv"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    tokens.write_text(f'{_TOKEN},admin,admin,"system:masters"\n')
    etcd: list[str | Path] = [
        binaries.etcd / "etcd",
        f"--data-dir={directory / 'etcd'}",
        f"--listen-client-urls={etcd_url}",
        f"--advertise-client-urls={etcd_url}",
        f"--listen-peer-urls={peer_url}",
        f"--initial-advertise-peer-urls={peer_url}",
        f"--initial-cluster=default={peer_url}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]
    api_server: list[str | Path] = [
        binaries.kubernetes / "kube-apiserver",
        f"--etcd-servers={etcd_url}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={base_port}",
        f"--cert-dir={pki}",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--endpoint-reconciler-type=none",
        "--authorization-mode=RBAC",
        f"--disable-admission-plugins={_ADMISSION_OFF}",
        f"--token-auth-file={tokens}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
    ]
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    url, uncached_url = (f"https://127.0.0.1:{base_port + offset}" for offset in (0, 3))
    uncached = [*api_server, f"--secure-port={base_port + 3}", "--watch-cache=false"]
    server = RealServer(url=url, uncached_url=uncached_url, token=_TOKEN, etcd_url=etcd_url, tls=tls)
    with _process(etcd, directory / "etcd.log"), _process(api_server, directory / "api.log"):
        _wait_until_ready(server, url)
        with _process(uncached, directory / "uncached.log"):
            _wait_until_ready(server, uncached_url)
            yield server


def compact(server: RealServer) -> None:
    """Makes etcd forget all revisions but the last."""
    revision = _etcd(server, "kv/range", {"key": "AA=="})["header"]["revision"]
    _etcd(server, "kv/compaction", {"revision": revision, "physical": True})


def _etcd(server: RealServer, call: str, body: dict[str, object]) -> dict[str, dict[str, str]]:
    request = urllib.request.Request(f"{server.etcd_url}/v3/{call}", data=json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=30) as response:
        answer: dict[str, dict[str, str]] = json.load(response)
    return answer


@contextlib.contextmanager
def _process(argv: list[str | Path], log: Path) -> Iterator[None]:
    with log.open("wb") as output, subprocess.Popen(argv, stdout=output, stderr=output) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


def _wait_until_ready(server: RealServer, url: str) -> None:
    headers = {"authorization": f"Bearer {server.token}"}
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        # `readyz` comes before the built-in priority classes that every pod refers to.
        path = "/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical"
        with contextlib.suppress(urllib.error.URLError, OSError):
            for question in ("/readyz", path, "/api/v1/namespaces/default"):
                request = urllib.request.Request(url + question, headers=headers)
                urllib.request.urlopen(request, timeout=5, context=server.tls).close()
            return
        time.sleep(0.1)
    raise TimeoutError(f"no ready API server at {url}")
