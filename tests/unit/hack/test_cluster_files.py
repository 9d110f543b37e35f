"""What a cluster's processes are given: configuration, access, images; and how they are found again."""

import csv
import io
import json
import tarfile
import tomllib
from base64 import b64decode
from hashlib import sha256
from pathlib import Path

import yaml

from clusterlib import access, cgroups, controlplane, images, nodes, processes
from clusterlib.binaries import Binaries
from clusterlib.layout import DEFAULT_BASE_PORT, MAX_NODES, Layout

LAYOUT = Layout(base_port=DEFAULT_BASE_PORT, run_dir=Path("/run-dir"))
BINARIES = Binaries(kubernetes=Path("/k8s"), containerd=Path("/containerd"), etcd=Path("/etcd"))


def test_every_component_has_a_token_and_nodes_are_nodes() -> None:
    tokens = {component: f"token-of-{component}" for component in access.users()}
    rows = list(csv.reader(access.tokens_csv(tokens).splitlines()))
    assert len(rows) == 3 + MAX_NODES
    by_user = {user: (token, groups) for token, user, _, groups in rows}
    assert by_user["system:node:node-2"] == ("token-of-node-2", "system:nodes")
    assert by_user["kubernetes-admin"] == ("token-of-admin", "system:masters")
    assert [user for user, (_, groups) in by_user.items() if groups == "system:masters"] == [
        "kubernetes-admin"
    ]


def test_kubeconfig_verifies_the_server() -> None:
    text = access.kubeconfig(
        server="https://10.0.0.1:1", ca_certificate=b"PEM", user="somebody", token="secret", name="here"
    )
    document = yaml.safe_load(text)
    cluster = document["clusters"][0]["cluster"]
    assert b64decode(cluster["certificate-authority-data"]) == b"PEM"
    assert "insecure-skip-tls-verify" not in cluster
    assert document["current-context"] == document["contexts"][0]["name"] == "here"


def test_control_plane_listens_only_on_the_cluster_and_loopback() -> None:
    commands = {command.component: command.argv for command in controlplane.commands(LAYOUT, BINARIES)}
    assert list(commands) == list(controlplane.COMPONENTS)
    binds = [str(word) for argv in commands.values() for word in argv if "bind-address" in str(word)]
    loopback = "--bind-address=127.0.0.1"
    assert binds == [f"--bind-address={LAYOUT.gateway}", loopback, loopback]
    assert "--authorization-mode=Node,RBAC" in commands[controlplane.API_SERVER]


def test_node_configuration() -> None:
    node = LAYOUT.node(2)
    kubelet = nodes.kubelet_config(LAYOUT, node)
    assert kubelet["cgroupRoot"] == "/tangram-16400/node-2"
    assert kubelet["authentication"] == {
        "anonymous": {"enabled": False},
        "webhook": {"enabled": True},
        "x509": {"clientCAFile": "/run-dir/pki/ca.crt"},
    }
    plugins = tomllib.loads(nodes.containerd_config())["plugins"]
    assert plugins["io.containerd.cri.v1.runtime"]["cdi_spec_dirs"] == ["/var/run/cdi"]
    assert str(node.pod_network) in json.dumps(nodes.cni_config(node))


def test_oci_archive_is_a_complete_layout() -> None:
    layer = images.busybox_layer(b"ELF", ["sh", "ls", "busybox"])
    with tarfile.open(fileobj=io.BytesIO(layer)) as root:
        assert root.getmember("bin/sh").linkname == "busybox"
        assert root.getmember("bin/busybox").mode == 0o755
    archive = images.oci_archive(layer, {"localhost/a:1": ["/bin/a"], "localhost/b:1": ["/bin/b"]})
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        files = {member.name: tar.extractfile(member) for member in tar.getmembers()}
        content = {name: file.read() for name, file in files.items() if file}
    blobs = {name.rpartition("/")[2]: data for name, data in content.items() if name.startswith("blobs/")}
    assert all(sha256(data).hexdigest() == digest for digest, data in blobs.items())
    index = json.loads(content["index.json"])
    names = [entry["annotations"]["io.containerd.image.name"] for entry in index["manifests"]]
    assert names == ["localhost/a:1", "localhost/b:1"]
    for entry in index["manifests"]:
        manifest = json.loads(blobs[entry["digest"].removeprefix("sha256:")])
        for descriptor in (manifest["config"], *manifest["layers"]):
            assert len(blobs[descriptor["digest"].removeprefix("sha256:")]) == descriptor["size"]


def test_cgroup_hierarchies_of_both_versions() -> None:
    mounts = (
        "proc /proc proc rw 0 0\n"
        "cgroup /sys/fs/cgroup/pids cgroup rw,pids 0 0\n"
        "cgroup /sys/fs/cgroup/pids cgroup rw,pids 0 0\n"
        "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
    )
    assert cgroups.hierarchies(mounts) == [Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup/unified")]


def test_main_process_is_not_its_launcher_nor_its_child() -> None:
    def process(pid: int, program: str, component: str = "node-1/containerd") -> processes.Process:
        return processes.Process(pid=pid, component=component, program=program)

    living = [
        process(1, "nsenter"),
        process(2, "containerd-shim-runc-v2"),
        process(3, "containerd", "node-2/containerd"),
        process(4, "containerd"),
    ]
    found = processes.main_process(living, "node-1/containerd", "containerd")
    assert found is not None
    assert found.pid == 4
    assert processes.main_process(living, "node-1/kubelet", "kubelet") is None


def test_environment_block() -> None:
    block = b"A=1\0TANGRAM_CLUSTER=16400\0EMPTY=\0odd\0B=x=y\0\xff=z\0"
    parsed = processes.parse_environment(block)
    assert parsed["TANGRAM_CLUSTER"] == "16400"
    assert parsed["EMPTY"] == ""
    assert parsed["B"] == "x=y"
    assert "odd" not in parsed
