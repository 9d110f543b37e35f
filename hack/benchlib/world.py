"""What the measured processes see: an API server with TLS, a kubelet, and credentials as in a pod."""

import asyncio
import json
import os
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

from benchlib.environment import REPOSITORY
from benchlib.processes import Process
from clusterlib.commands import run
from clusterlib.errors import ClusterError
from devtools import bootstrap
from tangram import DRIVER_NAME
from tangram.kube.resources import DEVICE_CLASSES, NODES, RESOURCE_SLICES
from tangram.playground.cluster import device_classes
from tangram.testing.apiserver import FakeApiServer
from tangram.testing.kubelet import FakeKubelet

NODE = "node-1"
MACHINE = "a100-sxm4-80gb-x8"
GPUS = 8
PYTHON = REPOSITORY / ".venv-run" / "bin" / "python"
_REFERENCES = Path(__file__).with_name("references.py")

# The in-cluster credentials have a fixed place, which only this process and its children are to see.
_IN_POD = """\
mount -t tmpfs tmpfs /run && mkdir -p /run/secrets/kubernetes.io/serviceaccount &&
cp "$1"/token "$1"/ca.crt /run/secrets/kubernetes.io/serviceaccount/ && shift && exec "$@"
"""


class World:
    """Use as `async with`. Processes started here are killed at its end. `settings` of the node plugin."""

    def __init__(self, settings: Mapping[str, str | int] = MappingProxyType({"simulate": MACHINE})) -> None:
        self._settings = settings
        self._processes: list[Process] = []
        self._sockets = 0

    async def __aenter__(self) -> Self:
        try:
            await asyncio.to_thread(bootstrap.prepare)
        except bootstrap.CannotPrepareError as error:
            raise ClusterError(str(error), next_step="run ./hack/try, which needs the same") from error
        # Paths of sockets hold 107 bytes.
        self.directory = Path(tempfile.mkdtemp(prefix="tgb", dir="/tmp"))
        try:
            self.server = FakeApiServer(ssl_context=self._credentials())
            lines = "".join(f"{name}: {value}\n" for name, value in self._settings.items())
            (self.directory / "node.yaml").write_text(lines, encoding="utf-8")
            self.server.create(NODES, _node())
            for device_class in device_classes():
                self.server.create(DEVICE_CLASSES, device_class)
            await self.server.resume()
            self.kubelet = FakeKubelet(self.directory)
            self.kubelet.start()
        except BaseException:
            shutil.rmtree(self.directory)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in self._processes:
            await process.kill()
        await self.kubelet.stop()
        await self.server.pause()
        shutil.rmtree(self.directory)

    def _credentials(self) -> ssl.SSLContext:
        """Writes token and ca.crt, as of a service account; the server's side of it."""
        certificate, key = self.directory / "ca.crt", self.directory / "key"
        (self.directory / "token").write_text("token")
        run(
            [
                *(
                    "openssl",
                    "req",
                    "-x509",
                    "-newkey",
                    "ec",
                    "-pkeyopt",
                    "ec_paramgen_curve:P-256",
                    "-nodes",
                ),
                *("-days", "2", "-subj", "/CN=bench", "-addext", "subjectAltName=IP:127.0.0.1"),
                *("-keyout", key, "-out", certificate),
            ]
        )
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)
        return context

    def trust(self) -> ssl.SSLContext:
        """A client's side of it."""
        return ssl.create_default_context(cafile=str(self.directory / "ca.crt"))

    def kubeconfig(self) -> str:
        """The path of a kubeconfig for this API server, for a client in this process."""
        path = self.directory / "kubeconfig"
        server = {"server": self.server.url, "certificate-authority": str(self.directory / "ca.crt")}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "bench", "cluster": server}],
            "users": [{"name": "bench", "user": {"token": "token"}}],
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
            "current-context": "bench",
        }
        path.write_text(json.dumps(document), encoding="utf-8")
        return str(path)

    # --- processes ------------------------------------------------------------------------------------------

    async def start_node(self) -> Process:
        """The node plugin with eight simulated GPUs."""
        return await self._start(
            "-m", "tangram", "node", "run", "--node-name", NODE,
            "--config", str(self.directory / "node.yaml"),
            # /run is the process's own, in memory as on a node.
            "--kubelet-dir", str(self.directory), "--cdi-root", "/run/cdi",
            "--metrics-address", "127.0.0.1:0",
        )  # fmt: skip

    async def start_mps(self) -> Process:
        """The supervisor of (simulated) MPS daemons."""
        return await self._start(
            "-m", "tangram", "mps", "run", "--simulated", "true", "--kubelet-dir", str(self.directory),
        )  # fmt: skip

    async def start_controller(self) -> Process:
        """The controller; it leads as soon as it can."""
        return await self._start("-m", "tangram", "controller", "run", "--metrics-address", "127.0.0.1:0")

    async def start_python(self, code: str) -> Process:
        """An interpreter that runs this."""
        return await self._start("-c", code)

    async def start_echo(self, *, answer_bytes: int) -> tuple[Process, Path]:
        """A bare gRPC server of the same Python, and its socket."""
        self._sockets += 1
        socket = self.directory / f"echo-{self._sockets}.sock"
        return await self._start(str(_REFERENCES), "serve", str(socket), str(answer_bytes)), socket

    async def start_imports(self, *modules: str) -> Process:
        """A process that imports modules, one after the other, and stays."""
        return await self._start(str(_REFERENCES), "import", *modules)

    async def _start(self, *words: str) -> Process:
        host, _, port = self.server.url.removeprefix("https://").rpartition(":")
        namespace = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--"]
        process = await Process.start(
            *namespace, "sh", "-c", _IN_POD, "sh", str(self.directory), str(PYTHON), *words,
            environment={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(REPOSITORY / "driver"),
                "PYTHONUNBUFFERED": "1",
                # As in the chart.
                "SSL_CERT_FILE": "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt",
                "KUBERNETES_SERVICE_HOST": host,
                "KUBERNETES_SERVICE_PORT": port,
                "TANGRAM_NAMESPACE": "tangram-system",
            },
        )  # fmt: skip
        self._processes.append(process)
        return process

    # --- what they did --------------------------------------------------------------------------------------

    async def until_slices(self, count: int = GPUS) -> None:
        """Until so many ResourceSlices are there."""
        await self.server.until(lambda: len(self.server.objects(RESOURCE_SLICES)) >= count, timeout_s=60)

    def drop_slices(self) -> None:
        """As if the node were new."""
        for each in self.server.objects(RESOURCE_SLICES):
            self.server.delete(RESOURCE_SLICES, name=each["metadata"]["name"])

    def device_names(self, kind: str = "gpu") -> list[str]:
        """Of the published devices of a kind, GPU by GPU."""
        slices = self.server.objects(RESOURCE_SLICES)
        devices = [device for each in slices for device in each["spec"].get("devices") or ()]
        return [device["name"] for device in devices if device["attributes"]["type"] == {"string": kind}]

    async def registered(self) -> Any:
        """The plugin's registration with the kubelet, once there is one."""
        return await self.kubelet.plugin(DRIVER_NAME, timeout_s=60)


def check_namespaces() -> None:
    """ClusterError where a process cannot be given the files of a pod."""
    words = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "true"]
    if subprocess.run(words, check=False).returncode != 0:
        raise ClusterError(
            "a mount namespace cannot be made: the measured processes are to see a pod's credentials",
            next_step="run as root, or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1)",
        )


def _node() -> dict[str, Any]:
    room = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    ready = {"type": "Ready", "status": "True"}
    return {
        "metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE}},
        "spec": {},
        "status": {"capacity": room, "allocatable": room, "conditions": [ready]},
    }
