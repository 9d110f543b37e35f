"""The command hack/cluster. See --help and docs/cluster.md."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import dedent
from time import monotonic

from clusterlib import processes
from clusterlib.binaries import KUBERNETES_VERSION, ensure_kubectl
from clusterlib.cluster import Cluster, ClusterState
from clusterlib.errors import ClusterError
from clusterlib.layout import BASE_PORTS, DEFAULT_BASE_PORT, REPOSITORY, Layout, default_run_dir

_DESCRIPTION = """\
Real Kubernetes on this machine: etcd, API server, controller manager, scheduler, and nodes with containerd
and a kubelet each. Nothing is emulated; a node is a set of Linux namespaces with its own address and its own
/var/lib/kubelet, /var/lib/containerd and /run. Needs root on Debian 12 with Go (to build Kubernetes, once per
version).

  hack/cluster up --nodes 2              build what is missing, start, wait until the nodes are Ready
  eval "$(hack/cluster env)"             point kubectl at it
  kubectl get nodes
  hack/cluster load-image image.tar      make an image known to every node
  hack/cluster logs node-1/kubelet -f
  hack/cluster restart-kubelet node-1 --kill9
  hack/cluster exec-node node-1 -- ls /var/lib/kubelet/plugins
  hack/cluster down                      leaves no process, mount, link, rule or cgroup; keeps the logs
"""

_EPILOG = f"""\
Every port, address and path follows from --base-port, so clusters with different base ports run side by side.
The images localhost/busybox:1 and localhost/pause:1 are there from the start; no registry can be reached.

exit codes: 0 done, up or yes; 1 failed; 2 bad usage; 3 not up. The default base port is {DEFAULT_BASE_PORT}.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        run_dir = options.run_dir or default_run_dir(options.base_port)
        cluster = Cluster(Layout(base_port=options.base_port, run_dir=run_dir.resolve()))
        action: Callable[[Cluster, argparse.Namespace], int] = options.action
        return action(cluster, options)
    except ClusterError as error:
        print(f"hack/cluster: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # such as `hack/cluster logs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("hack/cluster: interrupted; `hack/cluster down` removes what was started", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--base-port",
        type=int,
        default=DEFAULT_BASE_PORT,
        metavar="P",
        help=f"which cluster: a multiple of {BASE_PORTS.step} from {BASE_PORTS[0]} to {BASE_PORTS[-1]} "
        "(%(default)s)",
    )
    common.add_argument(
        "--run-dir",
        type=Path,
        metavar="DIR",
        help="where it keeps its files (~/.cache/tangram/run/<base port>)",
    )
    parser = argparse.ArgumentParser(
        prog="hack/cluster",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(
        name: str, action: Callable[[Cluster, argparse.Namespace], int], help_text: str, more: str = ""
    ) -> argparse.ArgumentParser:
        made = commands.add_parser(
            name,
            parents=[common],
            help=help_text,
            description=f"{help_text[0].upper()}{help_text[1:]}. {dedent(more)}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        made.set_defaults(action=action)
        return made

    up = command("up", _up, "build, start and wait for what is missing")
    up.add_argument(
        "--version", default=KUBERNETES_VERSION, metavar="X.Y.Z", help="of Kubernetes (%(default)s)"
    )
    up.add_argument("--nodes", type=int, default=1, metavar="N", help="node-1 … node-N (%(default)s)")
    command("down", _down, "end and remove the cluster, keep its logs")
    command("status", _status, "list components and nodes; exit code 3 unless all are up")
    command("env", _env, "print shell lines that point kubectl at the cluster")
    load = command("load-image", _load_image, "import an OCI or Docker image archive into every node")
    load.add_argument("archive", type=Path, metavar="TAR")
    logs = command("logs", _logs, "show a component's log, or list all logs")
    logs.add_argument("component", nargs="?", help="such as kube-scheduler or node-1/kubelet")
    logs.add_argument("-f", "--follow", action="store_true", help="go on as the log grows")
    logs.add_argument("--tail", type=int, metavar="N", help="only the last N lines")
    for name, action, help_text in (
        ("start-kubelet", _start_kubelet, "start a node's kubelet and wait until it is healthy"),
        ("stop-kubelet", _stop_kubelet, "end a node's kubelet and wait for its end; its pods run on"),
        ("restart-kubelet", _restart_kubelet, "stop-kubelet, then start-kubelet"),
    ):
        kubelet = command(name, action, help_text)
        kubelet.add_argument("node", metavar="NODE")
        if action is not _start_kubelet:
            kubelet.add_argument("--kill9", action="store_true", help="SIGKILL instead of SIGTERM")
    kubectl = command("build-kubectl", _build_kubectl, "build the kubectl of versions, for tests")
    kubectl.add_argument("versions", nargs="+", metavar="X.Y.Z")
    execute = command(
        "exec-node", _exec_node, "run a command inside a node's namespaces (mount, network, PID, UTS)"
    )
    execute.add_argument("node", metavar="NODE")
    execute.add_argument("words", nargs="+", metavar="-- COMMAND", help="the command and its arguments")
    return parser


def _up(cluster: Cluster, options: argparse.Namespace) -> int:
    started_s = monotonic()
    cluster.up(ClusterState(version=options.version, node_count=options.nodes))
    print(f"Kubernetes {options.version} is up in {monotonic() - started_s:.1f} s", file=sys.stderr)
    print(f"logs in {cluster.layout.log_dir}; kubectl:", file=sys.stderr)
    return _env(cluster, options)


def _down(cluster: Cluster, _: argparse.Namespace) -> int:
    there_was_one = cluster.down()
    print(f"removed; logs in {cluster.layout.log_dir}" if there_was_one else "there was nothing to remove")
    return 0


def _status(cluster: Cluster, _: argparse.Namespace) -> int:
    state, _runner = cluster.existing()
    print(f"Kubernetes {state.version} at {cluster.layout.server}, run directory {cluster.layout.run_dir}")
    all_up = True
    for status in cluster.components():
        all_up &= status.pid is not None
        print(f"  {status.component:28} {f'pid {status.pid}' if status.pid else 'NOT RUNNING'}")
    try:
        known = cluster.api().nodes()
    except OSError as error:
        print(f"  the API server cannot be reached: {error}")
        return 3
    for node in cluster.nodes():
        ready = known[node.name].ready if node.name in known else None
        all_up &= ready is not None and ready.status == "True"
        text = (
            "not registered"
            if ready is None
            else "Ready"
            if ready.status == "True"
            else f"NOT READY: {ready.message}"
        )
        print(f"  {node.name:28} {text}  (address {node.address}, pods {node.pod_network})")
    return 0 if all_up else 3


def _env(cluster: Cluster, _: argparse.Namespace) -> int:
    cluster.existing()
    print(f"export KUBECONFIG={cluster.layout.kubeconfig}")
    print(f"export PATH={REPOSITORY / '.venv/bin'}:$PATH")
    return 0


def _load_image(cluster: Cluster, options: argparse.Namespace) -> int:
    if not options.archive.is_file():
        raise ClusterError(
            f"there is no file {options.archive}", next_step="give the path of an archive", exit_code=2
        )
    started_s = monotonic()
    cluster.load_image(options.archive.resolve())
    nodes = len(cluster.nodes())
    print(f"imported {options.archive.name} into {nodes} node(s) in {monotonic() - started_s:.1f} s")
    return 0


def _logs(cluster: Cluster, options: argparse.Namespace) -> int:  # noqa: RET503 - exec does not return
    directory = cluster.layout.log_dir
    if options.component is None:
        for file in sorted(directory.rglob("*.log")):
            component = str(file.relative_to(directory).with_suffix(""))
            print(f"{component:28} {file.stat().st_size / 1024:8.0f} KiB  {file}")
        return 0
    file = directory / f"{options.component}.log"
    if not file.is_file():
        raise ClusterError(f"there is no log {file}", next_step="`hack/cluster logs` lists them", exit_code=2)
    lines = "+1" if options.tail is None else str(options.tail)
    os.execvp("tail", ["tail", "-n", lines, *(["-F"] if options.follow else []), str(file)])


def _build_kubectl(_: Cluster, options: argparse.Namespace) -> int:
    for version in options.versions:
        print(ensure_kubectl(version))
    return 0


def _start_kubelet(cluster: Cluster, options: argparse.Namespace) -> int:
    cluster.start_kubelet(cluster.node(options.node))
    return 0


def _stop_kubelet(cluster: Cluster, options: argparse.Namespace) -> int:
    _, runner = cluster.existing()
    if not runner.stop_kubelet(cluster.node(options.node), kill9=options.kill9):
        print("it was not running")
    return 0


def _restart_kubelet(cluster: Cluster, options: argparse.Namespace) -> int:
    return _stop_kubelet(cluster, options) or _start_kubelet(cluster, options)


def _exec_node(cluster: Cluster, options: argparse.Namespace) -> int:
    _, runner = cluster.existing()
    words = [*runner.enter(cluster.node(options.node)), *options.words]
    os.execvpe(words[0], words, {**os.environ, "PATH": processes.SYSTEM_PATH})


if __name__ == "__main__":
    sys.exit(main())
