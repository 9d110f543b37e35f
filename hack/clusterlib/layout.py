"""Where everything of one cluster lies: each port, address, path and name follows from the base port.

Pure. Two clusters with different base ports share nothing, so they run side by side.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from itertools import islice
from pathlib import Path

from clusterlib.errors import ClusterError

# Below Linux' ephemeral ports (32768..), so that no outgoing connection takes one of ours first.
BASE_PORTS = range(10_000, 32_700, 100)
DEFAULT_BASE_PORT = 16_400
MAX_NODES = 30

# One /19 per base port: 256 are enough for the 227 base ports.
_ALL_CLUSTERS = IPv4Network("10.32.0.0/11")
SERVICE_NETWORK = IPv4Network("10.96.0.0/16")
API_SERVICE_ADDRESS = SERVICE_NETWORK[1]

REPOSITORY = Path(__file__).resolve().parents[2]
CACHE_DIR = Path.home() / ".cache" / "tangram"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLayout:
    """One node: a set of namespaces on this machine, with its own address, file systems and cgroup."""

    name: str
    address: IPv4Address
    pod_network: IPv4Network
    host_link: str
    """Name of the host's end of the node's network link (at most 15 bytes)."""
    directory: Path
    """The node's private files on the host, bind-mounted on the default paths inside the node."""
    cgroup: str
    """Relative to each cgroup hierarchy's root."""
    log_dir: Path

    def component(self, program: str) -> str:
        return f"{self.name}/{program}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One cluster. Raises ClusterError for a base port outside BASE_PORTS."""

    base_port: int
    run_dir: Path

    def __post_init__(self) -> None:
        if self.base_port not in BASE_PORTS:
            raise ClusterError(
                f"base port {self.base_port} cannot be used",
                next_step=f"choose a multiple of {BASE_PORTS.step} from {BASE_PORTS[0]} to {BASE_PORTS[-1]}",
                exit_code=2,
            )

    @property
    def api_port(self) -> int:
        return self.base_port

    @property
    def etcd_client_port(self) -> int:
        return self.base_port + 1

    @property
    def etcd_peer_port(self) -> int:
        return self.base_port + 2

    @property
    def controller_manager_port(self) -> int:
        return self.base_port + 3

    @property
    def scheduler_port(self) -> int:
        return self.base_port + 4

    @property
    def network(self) -> IPv4Network:
        """All addresses: the first /24 for the machine and the nodes, one more per node for its pods."""
        slot = BASE_PORTS.index(self.base_port)
        return IPv4Network((int(_ALL_CLUSTERS[0]) + (slot << 13), 19))

    @property
    def node_network(self) -> IPv4Network:
        return next(self.network.subnets(new_prefix=24))

    @property
    def gateway(self) -> IPv4Address:
        """The host's address on the cluster's bridge; the API server listens there and nowhere else."""
        return self.node_network[1]

    @property
    def server(self) -> str:
        return f"https://{self.gateway}:{self.api_port}"

    @property
    def bridge(self) -> str:
        return f"tangram{self.base_port}"

    @property
    def cgroup(self) -> str:
        return f"tangram-{self.base_port}"

    @property
    def pki_dir(self) -> Path:
        return self.run_dir / "pki"

    @property
    def config_dir(self) -> Path:
        return self.run_dir / "config"

    @property
    def log_dir(self) -> Path:
        return self.run_dir / "logs"

    @property
    def etcd_dir(self) -> Path:
        return self.run_dir / "etcd"

    @property
    def kubeconfig(self) -> Path:
        return self.run_dir / "kubeconfig"

    @property
    def state_file(self) -> Path:
        return self.run_dir / "cluster.json"

    @property
    def test_images(self) -> Path:
        return self.run_dir / "test-images.tar"

    def node(self, number: int) -> NodeLayout:
        """Node `number`, counted from 1."""
        if not 1 <= number <= MAX_NODES:
            raise ClusterError(
                f"a cluster has 1 to {MAX_NODES} nodes, not {number}",
                next_step="choose a smaller --nodes",
                exit_code=2,
            )
        name = f"node-{number}"
        return NodeLayout(
            name=name,
            address=self.node_network[10 + number],
            pod_network=next(islice(self.network.subnets(new_prefix=24), number, None)),
            host_link=f"tg{self.base_port}-{number}",
            directory=self.run_dir / "nodes" / name,
            cgroup=f"{self.cgroup}/{name}",
            log_dir=self.log_dir / name,
        )

    def nodes(self, count: int) -> Sequence[NodeLayout]:
        return [self.node(number) for number in range(1, count + 1)]


def default_run_dir(base_port: int) -> Path:
    return CACHE_DIR / "run" / str(base_port)
