"""What the tests do to a real cluster, in the words of an operator."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SYSTEM = "tangram-system"
DRIVER = "gpu.resource.admin"


class NotInTimeError(AssertionError):
    """What was waited for did not happen; carries what was seen last."""


class Cluster:
    """A running cluster with Tangram on it, reached by kubectl and hack/cluster as a person would."""

    def __init__(self, base_port: str) -> None:
        self.base_port = base_port
        self.namespace = "default"
        shell = self.hack("env")
        self._environment = dict(os.environ)
        for line in shell.splitlines():
            name, _, value = line.removeprefix("export ").partition("=")
            if line.startswith("export "):
                self._environment[name] = value.strip("\"'")
        self._environment["PATH"] = f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"

    def hack(self, command: str, *arguments: str, check: bool = True) -> str:
        """Runs `hack/cluster COMMAND` for this cluster."""
        return run(
            str(ROOT / "hack" / "cluster"), command, "--base-port", self.base_port, *arguments, check=check
        )

    def on_node(self, node: str, *command: str, check: bool = True) -> str:
        """Runs a command in the node's namespaces."""
        return self.hack("exec-node", node, "--", *command, check=check)

    def kubectl(self, *arguments: str, stdin: str = "", check: bool = True) -> str:
        """Runs kubectl; raises with its output where it fails."""
        return run("kubectl", *arguments, stdin=stdin, environment=self._environment, check=check)

    def minor(self) -> int:
        """The server's version: 36 for Kubernetes 1.36."""
        version = json.loads(self.kubectl("version", "-o", "json"))["serverVersion"]
        return int(version["minor"].rstrip("+"))

    def apply(self, *manifests: dict[str, Any] | Path) -> None:
        """kubectl apply in the test's namespace."""
        for manifest in manifests:
            text = manifest.read_text() if isinstance(manifest, Path) else json.dumps(manifest)
            self.kubectl("apply", "-n", self.namespace, "-f", "-", stdin=text)

    def get(self, kind: str, name: str, *, namespace: str = "") -> dict[str, Any]:
        """An object; empty if there is none."""
        text = self.kubectl(
            "get", kind, name, "-n", namespace or self.namespace, "-o", "json", "--ignore-not-found"
        )
        found: dict[str, Any] = json.loads(text) if text.strip() else {}
        return found

    def items(self, kind: str, *, namespace: str = "", selector: str = "") -> list[dict[str, Any]]:
        """Objects of a kind."""
        arguments = ["get", kind, "-n", namespace or self.namespace, "-o", "json"]
        if selector:
            arguments += ["-l", selector]
        items: list[dict[str, Any]] = json.loads(self.kubectl(*arguments))["items"]
        return items

    def events(self, name: str) -> list[dict[str, Any]]:
        """Events about an object, oldest first."""
        arguments = ("--field-selector", f"involvedObject.name={name}", "-o", "json")
        found = json.loads(self.kubectl("get", "events", "-n", self.namespace, *arguments))
        return list(found["items"])

    def wait(self, what: str, seen: Callable[[], Any], *, timeout_s: float = 60) -> Any:
        """Asks until the answer is true; returns it."""
        deadline = time.monotonic() + timeout_s
        while not (answer := seen()):
            if time.monotonic() > deadline:
                raise NotInTimeError(f"{what}: not within {timeout_s:.0f} s\n{self.describe()}")
            time.sleep(0.2)
        return answer

    def wait_phase(self, pod: str, *phases: str, timeout_s: float = 60) -> dict[str, Any]:
        """The pod once it is in one of these phases."""

        def seen() -> dict[str, Any]:
            item = self.get("pod", pod)
            return item if item.get("status", {}).get("phase") in phases else {}

        found: dict[str, Any] = self.wait(f"pod {pod} {'/'.join(phases)}", seen, timeout_s=timeout_s)
        return found

    def describe(self) -> str:
        """Everything a person would look at first."""
        parts = [
            self.kubectl("get", "pods,resourceclaims", "-n", self.namespace, "-o", "wide", check=False),
            self.kubectl("get", "events", "-n", self.namespace, check=False),
            self.kubectl("get", "pods,leases", "-n", SYSTEM, "-o", "wide", check=False),
            self.kubectl("get", "resourceslices", check=False),
        ]
        for component in ("node", "controller"):
            selector = f"app.kubernetes.io/component={component}"
            parts.append(
                self.kubectl("logs", "-n", SYSTEM, "-l", selector, "--tail", "30", "--prefix", check=False)
            )
        return "\n".join(parts)

    # --- claims and devices ---------------------------------------------------------------------------

    def claims_of(self, pod: dict[str, Any]) -> list[dict[str, Any]]:
        """The claims of a pod, in its order."""
        generated = {
            s["name"]: s["resourceClaimName"] for s in pod["status"].get("resourceClaimStatuses", [])
        }
        names = [
            entry.get("resourceClaimName") or generated[entry["name"]]
            for entry in pod["spec"]["resourceClaims"]
        ]
        return [self.get("resourceclaim", name) for name in names]

    def devices_of(self, pod: dict[str, Any]) -> list[str]:
        """`pool/device` of all that the pod's claims were given."""
        return [
            f"{result['pool']}/{result['device']}"
            for claim in self.claims_of(pod)
            for result in claim["status"]["allocation"]["devices"]["results"]
        ]

    def kept_on(self, node: str) -> tuple[set[str], set[str]]:
        """Claim uids with held state, and those with a CDI file, on a node."""
        state, prefix = f"/var/lib/kubelet/plugins/{DRIVER}/claims/", f"/var/run/cdi/{DRIVER}_"
        shown = self.on_node(node, "sh", "-c", f"ls -d {state}*.json {prefix}*.json", check=False)
        paths = [path.removesuffix(".json") for path in shown.split()]
        held, cdi = (
            {path.removeprefix(start) for path in paths if path.startswith(start)}
            for start in (state, prefix)
        )
        return held, cdi

    def held_on(self, node: str) -> set[str]:
        """Claim uids with held state on a node."""
        return self.kept_on(node)[0]

    def cdi_on(self, node: str) -> set[str]:
        """Claim uids with a CDI file on a node."""
        return self.kept_on(node)[1]

    # --- Tangram's own pods ---------------------------------------------------------------------------

    def component_pods(self, component: str, node: str = "") -> list[dict[str, Any]]:
        """Tangram's pods of a component (`node` or `controller`)."""
        selector = f"app.kubernetes.io/component={component}"
        pods = self.items("pods", namespace=SYSTEM, selector=selector)
        return [pod for pod in pods if not node or pod["spec"].get("nodeName") == node]

    def kill_component(self, component: str, node: str) -> None:
        """kill -9 of a component's process on a node, and nothing else of its pod."""
        self.on_node(node, "pkill", "-KILL", "-f", f"tangram {component} run")

    def wait_components(self) -> None:
        """All of Tangram's pods are ready."""

        def ready() -> bool:
            pods = self.component_pods("node") + self.component_pods("controller")
            conditions = [
                condition["status"] == "True"
                for pod in pods
                for condition in pod["status"].get("conditions", [])
                if condition["type"] == "Ready"
            ]
            return len(pods) >= 3 and len(conditions) == len(pods) and all(conditions)

        self.wait("Tangram's pods ready", ready, timeout_s=120)


def run(*command: str, stdin: str = "", environment: dict[str, str] | None = None, check: bool = True) -> str:
    """Standard output of a command; AssertionError with all output where it fails."""
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, env=environment, check=False, timeout=1800
    )
    if check and done.returncode:
        raise AssertionError(
            f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        )
    return done.stdout


def template(name: str, *, count: int = 1, **more: Any) -> dict[str, Any]:
    """A ResourceClaimTemplate of one request, `gpu`."""
    exactly = {"deviceClassName": DRIVER, "count": count, **more}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
    }


def pod(name: str, template_name: str = "", *, cpu: str = "10m", **spec: Any) -> dict[str, Any]:
    """A pod that prints its environment and device nodes, and stays."""
    container: dict[str, Any] = {
        "name": "main",
        "image": "busybox:1.36",
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", "env; ls -l /dev/nvidia*; trap exit TERM; sleep 3600 & wait"],
        "resources": {"requests": {"cpu": cpu}},
    }
    claims = []
    if template_name:
        claims = [{"name": "gpu", "resourceClaimTemplateName": template_name}]
        container["resources"]["claims"] = [{"name": "gpu"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "containers": [container],
            "resourceClaims": claims,
            "terminationGracePeriodSeconds": 1,
            **spec,
        },
    }


def containers(item: dict[str, Any]) -> str:
    """The identities of a pod's containers, and how often they were restarted."""
    return json.dumps([(s["containerID"], s["restartCount"]) for s in item["status"]["containerStatuses"]])
