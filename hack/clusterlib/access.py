"""Who may use the API: one static token per component, and the kubeconfig that carries it."""

import csv
import io
import secrets
from base64 import b64encode
from collections.abc import Iterable, Sequence
from pathlib import Path

import yaml

from clusterlib.layout import MAX_NODES, Layout

ADMIN = "admin"
CONTROLLER_MANAGER = "kube-controller-manager"
SCHEDULER = "kube-scheduler"


def users() -> dict[str, tuple[str, Sequence[str]]]:
    """Component -> its user name and groups. All MAX_NODES are there: the API server reads them once."""
    fixed: dict[str, tuple[str, Sequence[str]]] = {
        ADMIN: ("kubernetes-admin", ("system:masters",)),
        CONTROLLER_MANAGER: ("system:kube-controller-manager", ()),
        SCHEDULER: ("system:kube-scheduler", ()),
    }
    nodes = (f"node-{number}" for number in range(1, MAX_NODES + 1))
    return fixed | {name: (f"system:node:{name}", ("system:nodes",)) for name in nodes}


def tokens_csv(tokens: dict[str, str]) -> str:
    """The API server's --token-auth-file: token, user name, uid, groups."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for component, (user, groups) in users().items():
        writer.writerow([tokens[component], user, component, ",".join(groups)])
    return text.getvalue()


def read_tokens(layout: Layout) -> dict[str, str]:
    """Component -> token, from the token file."""
    rows: Iterable[list[str]] = csv.reader(tokens_file(layout).read_text().splitlines())
    return {component: token for token, _user, component, _groups in rows}


def tokens_file(layout: Layout) -> Path:
    return layout.pki_dir / "tokens.csv"


def kubeconfig_file(layout: Layout, component: str) -> Path:
    return layout.kubeconfig if component == ADMIN else layout.config_dir / f"{component}.kubeconfig"


def kubeconfig(*, server: str, ca_certificate: bytes, user: str, token: str, name: str) -> str:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": name,
                "cluster": {
                    "server": server,
                    "certificate-authority-data": b64encode(ca_certificate).decode(),
                },
            }
        ],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": user}}],
        "current-context": name,
    }
    return yaml.safe_dump(document, sort_keys=False)


def create(layout: Layout) -> None:
    """Write the token file (once) and the kubeconfig of every component."""
    file = tokens_file(layout)
    if not file.exists():
        new = file.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text(tokens_csv({component: secrets.token_urlsafe(24) for component in users()}))
        new.rename(file)
    tokens = read_tokens(layout)
    layout.config_dir.mkdir(parents=True, exist_ok=True)
    for component, (user, _groups) in users().items():
        target = kubeconfig_file(layout, component)
        target.touch(mode=0o600)
        target.write_text(
            kubeconfig(
                server=layout.server,
                ca_certificate=(layout.pki_dir / "ca.crt").read_bytes(),
                user=user,
                token=tokens[component],
                name=layout.bridge,
            )
        )
