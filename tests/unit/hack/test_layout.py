"""Two clusters share nothing, and neither do two nodes of one."""

from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterlib.errors import ClusterError
from clusterlib.layout import BASE_PORTS, MAX_NODES, SERVICE_NETWORK, Layout, default_run_dir

base_ports = st.sampled_from(BASE_PORTS)
_EPHEMERAL_PORTS_FROM = 32_768
_LINK_NAME_BYTES = 15


def layout(base_port: int) -> Layout:
    return Layout(base_port=base_port, run_dir=default_run_dir(base_port))


def ports(cluster: Layout) -> set[int]:
    return {
        cluster.api_port,
        cluster.etcd_client_port,
        cluster.etcd_peer_port,
        cluster.controller_manager_port,
        cluster.scheduler_port,
    }


@given(first=base_ports, second=base_ports)
def test_clusters_share_nothing(first: int, second: int) -> None:
    one, other = layout(first), layout(second)
    if first == second:
        assert one == other
        return
    assert ports(one).isdisjoint(ports(other))
    assert not one.network.overlaps(other.network)
    assert one.bridge != other.bridge
    assert one.cgroup != other.cgroup
    assert one.run_dir != other.run_dir
    assert {node.host_link for node in one.nodes(MAX_NODES)}.isdisjoint(
        node.host_link for node in other.nodes(MAX_NODES)
    )


@given(base_port=base_ports)
def test_nodes_of_a_cluster_share_nothing(base_port: int) -> None:
    cluster = layout(base_port)
    nodes = cluster.nodes(MAX_NODES)
    networks = [cluster.node_network, *(node.pod_network for node in nodes)]
    assert all(network.subnet_of(cluster.network) for network in networks)
    assert not any(one.overlaps(other) for one, other in combinations(networks, 2))
    for attribute in ("name", "address", "host_link", "directory", "cgroup", "log_dir"):
        assert len({getattr(node, attribute) for node in nodes}) == MAX_NODES
    assert cluster.gateway not in {node.address for node in nodes}
    assert all(node.address in cluster.node_network for node in nodes)


@given(base_port=base_ports)
def test_names_and_numbers_fit_the_kernel(base_port: int) -> None:
    cluster = layout(base_port)
    assert len(ports(cluster)) == 5
    assert max(ports(cluster)) < _EPHEMERAL_PORTS_FROM
    names = [cluster.bridge, *(node.host_link for node in cluster.nodes(MAX_NODES))]
    assert all(len(name) <= _LINK_NAME_BYTES for name in names)
    assert not cluster.network.overlaps(SERVICE_NETWORK)


@pytest.mark.parametrize("base_port", [0, 80, 9_900, 16_401, 32_700, 65_535])
def test_other_base_ports_are_refused(base_port: int) -> None:
    with pytest.raises(ClusterError, match="multiple of 100") as refused:
        Layout(base_port=base_port, run_dir=Path("/nowhere"))
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("number", [-1, 0, MAX_NODES + 1])
def test_other_node_counts_are_refused(number: int) -> None:
    with pytest.raises(ClusterError, match="nodes"):
        layout(BASE_PORTS[0]).node(number)
