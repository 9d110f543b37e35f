"""The cluster's network: a bridge on the host, a link into each node, and the API's service address.

Everything inside a node lives in its network namespace and goes with it. The host has only the bridge, the
ends of the links and the routes through it.
"""

import json
from collections.abc import Sequence

from clusterlib.commands import run
from clusterlib.layout import API_SERVICE_ADDRESS, Layout, NodeLayout

NODE_LINK = "eth0"


def create_bridge(layout: Layout) -> None:
    if layout.bridge in _links():
        return
    _batch([f"link add {layout.bridge} type bridge"])
    _batch([f"addr add {layout.gateway}/24 dev {layout.bridge}", f"link set {layout.bridge} up"])


def connect(layout: Layout, node: NodeLayout, *, init_pid: int, enter: Sequence[str]) -> None:
    """Link a fresh node (its process 1; the words that run a command inside) to the bridge."""
    if node.host_link in _links():
        _batch([f"link del {node.host_link}"])
    _batch(
        [
            f"link add {node.host_link} type veth peer name {NODE_LINK} netns {init_pid}",
            f"link set {node.host_link} master {layout.bridge} up",
        ]
    )
    _batch(
        [
            f"addr add {node.address}/24 dev {NODE_LINK}",
            f"link set {NODE_LINK} up",
            f"route add default via {layout.gateway}",
        ],
        enter=enter,
    )
    run([*enter, "sysctl", "--quiet", "net.ipv4.ip_forward=1"])
    # There is no kube-proxy. OUTPUT serves the node and its host-network pods, PREROUTING all other pods.
    for chain in ("OUTPUT", "PREROUTING"):
        match = ["-d", f"{API_SERVICE_ADDRESS}/32", "-p", "tcp", "--dport", "443"]
        target = ["-j", "DNAT", "--to-destination", f"{layout.gateway}:{layout.api_port}"]
        run([*enter, "iptables", "--wait", "-t", "nat", "-A", chain, *match, *target])


def route_to_pods(
    nodes: Sequence[NodeLayout], *, itself: NodeLayout | None, enter: Sequence[str] = ()
) -> None:
    """Let the host (`itself` None) or one node reach the pods of all other nodes."""
    others = [node for node in nodes if node != itself]
    _batch([f"route replace {node.pod_network} via {node.address}" for node in others], enter=enter)


def remove(layout: Layout) -> None:
    prefix = layout.node(1).host_link.removesuffix("1")
    ours = [name for name in _links() if name.startswith(prefix) or name == layout.bridge]
    _batch([f"link del {name}" for name in ours])


def leftovers(layout: Layout) -> bool:
    return layout.bridge in _links()


def _links() -> list[str]:
    return [link["ifname"] for link in json.loads(run(["ip", "-json", "link", "show"]))]


def _batch(commands: Sequence[str], *, enter: Sequence[str] = ()) -> None:
    if commands:
        run([*enter, "ip", "-batch", "-"], stdin="\n".join(commands))
