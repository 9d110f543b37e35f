"""etcd and the Kubernetes control plane: command lines (pure)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterlib import access
from clusterlib.binaries import Binaries
from clusterlib.layout import SERVICE_NETWORK, Layout

ETCD = "etcd"
API_SERVER = "kube-apiserver"
# In the order in which they start. A component's name is also its program's.
COMPONENTS = (ETCD, API_SERVER, access.CONTROLLER_MANAGER, access.SCHEDULER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    component: str
    argv: Sequence[str | Path]


def commands(layout: Layout, binaries: Binaries) -> Sequence[Command]:
    lines: dict[str, Sequence[str | Path]] = {
        ETCD: [binaries.etcd / ETCD, *_etcd(layout)],
        API_SERVER: [binaries.kubernetes / API_SERVER, *_api_server(layout)],
        access.CONTROLLER_MANAGER: [
            binaries.kubernetes / access.CONTROLLER_MANAGER,
            *_controller_manager(layout),
        ],
        access.SCHEDULER: [binaries.kubernetes / access.SCHEDULER, *_scheduler(layout)],
    }
    return [Command(component=component, argv=lines[component]) for component in COMPONENTS]


def _etcd(layout: Layout) -> Sequence[str]:
    client = f"http://127.0.0.1:{layout.etcd_client_port}"
    peer = f"http://127.0.0.1:{layout.etcd_peer_port}"
    return [
        f"--name={layout.bridge}",
        f"--data-dir={layout.etcd_dir}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster={layout.bridge}={peer}",
        "--unsafe-no-fsync",  # a test cluster does not outlive the machine's power
        "--log-level=warn",
    ]


def _api_server(layout: Layout) -> Sequence[str]:
    pki = layout.pki_dir
    return [
        f"--etcd-servers=http://127.0.0.1:{layout.etcd_client_port}",
        f"--bind-address={layout.gateway}",
        f"--advertise-address={layout.gateway}",
        f"--secure-port={layout.api_port}",
        f"--service-cluster-ip-range={SERVICE_NETWORK}",
        "--endpoint-reconciler-type=none",
        "--allow-privileged=true",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--token-auth-file={access.tokens_file(layout)}",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--requestheader-client-ca-file={pki / 'ca.crt'}",
        "--requestheader-allowed-names=front-proxy-client",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
        f"--kubelet-client-key={pki / 'kubelet-client.key'}",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki / 'service-accounts.pub'}",
        f"--service-account-signing-key-file={pki / 'service-accounts.key'}",
    ]


def _controller_manager(layout: Layout) -> Sequence[str]:
    return [
        *_client(layout, access.CONTROLLER_MANAGER, layout.controller_manager_port),
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={layout.pki_dir / 'service-accounts.key'}",
        f"--root-ca-file={layout.pki_dir / 'ca.crt'}",
    ]


def _scheduler(layout: Layout) -> Sequence[str]:
    return _client(layout, access.SCHEDULER, layout.scheduler_port)


def _client(layout: Layout, component: str, port: int) -> Sequence[str]:
    kubeconfig = access.kubeconfig_file(layout, component)
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={layout.pki_dir / component}",
    ]
