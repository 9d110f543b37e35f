"""Checks of the API server, with the rights of the node plugin: nothing is written."""

from collections.abc import Awaitable, Callable

from tangram.base.errors import (
    ConfigurationError,
    ForbiddenError,
    NotFoundError,
    TangramError,
    UnauthorizedError,
)
from tangram.kube.client import Client
from tangram.kube.resources import NODES, RESOURCE_SLICES
from tangram.node.doctor.check import Check, fail, ok, skip, warn
from tangram.node.settings import NodeSettings
from tangram.node.sight import Sight

_OLDEST = (1, 34)
_RBAC = "compare ClusterRole and ClusterRoleBinding tangram-node with those of the chart"


async def api_server(client: Client, settings: NodeSettings) -> list[Check]:
    """Whether it answers, and lets the plugin do what it must."""
    found = [await _ask("api-server", lambda: _version(client))]
    if found[0].result == "fail":
        return found
    found.append(await _ask("node-object", lambda: _node(client, settings.node_name)))
    found.append(await _ask("api-rights", lambda: _slices(client)))
    return found


def no_api_server(error: TangramError) -> list[Check]:
    """Where it cannot be reached, or nothing says where it is."""
    fix = error.next_step or "look at the network of this node, and at the API server"
    if isinstance(error, ConfigurationError):
        fix = "run it in the pod of the node plugin, or give --kubeconfig"
    return [fail("api-server", error.cause, fix=fix)]


async def _ask(name: str, question: Callable[[], Awaitable[Check]]) -> Check:
    try:
        return await question()
    except (ForbiddenError, UnauthorizedError) as error:
        return fail(name, error.cause, fix=_RBAC)
    except TangramError as error:
        return fail(name, error.cause, fix=error.next_step or "look at the network, and at the API server")


async def _version(client: Client) -> Check:
    major, minor = await client.server_version()
    text = f"Kubernetes {major}.{minor} at {client.server}"
    if (major, minor) < _OLDEST:
        return fail("api-server", text, fix="Tangram needs Kubernetes 1.34 or newer")
    return ok("api-server", text)


async def _node(client: Client, name: str) -> Check:
    try:
        await client.get(NODES, name=name)
    except NotFoundError:
        return fail(
            "node-object",
            f"there is no node {name}",
            fix="nodeName must be the name in kubectl get nodes; in a DaemonSet it comes from spec.nodeName",
        )
    return ok("node-object", name)


async def _slices(client: Client) -> Check:
    await client.list_page(RESOURCE_SLICES, limit=1)
    return ok("api-rights", "the node and ResourceSlices can be read")


def published(sight: Sight) -> list[Check]:
    """What the node's ResourceSlices say, beside what the hardware has."""
    name = "published"
    found = sight.api.published
    if found is None:
        return [skip(name, "the API server cannot be asked")]
    machine = sight.gpus.inventory.machine if sight.gpus.inventory else None
    checks = []
    if machine is not None and (missing := sorted({gpu.uuid for gpu in machine.gpus} - found.keys())):
        fix = "start the node plugin"
        if sight.plugin.runs:
            fix = "see the plugin's log; a GPU whose MIG mode reaches none of the node's kinds has no device"
        checks.append(fail(name, f"no device of {', '.join(missing)} is published", fix=fix))
    for uuid, state in found.items():
        if state == "unhealthy" and uuid not in sight.files.drains:
            checks.append(
                fail(
                    name, f"{uuid} is published as unhealthy", fix="the plugin's log says why (gpus_changed)"
                )
            )
        elif state == "healthy" and uuid in sight.files.drains:
            fix = "start the node plugin" if not sight.plugin.runs else "look at the plugin's log"
            checks.append(warn(name, f"{uuid} is drained and still published as healthy", fix=fix))
    return checks or [ok(name, f"{len(found)} GPUs")]
