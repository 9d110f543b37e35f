"""`tangram allocate`: the allocation engine on files."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tangram.allocation.structured import Options, Policy, parse_features
from tangram.base.errors import TangramError, UsageError
from tangram.cli.placing import Answer, Placer, chosen_nodes
from tangram.cli.problems import Problem, problem_of
from tangram.cli.results import as_json, as_yaml, device_text
from tangram.kube.objectfiles import FileObject, parse_objects, read_objects
from tangram.kube.objects import DeviceAllocationResult

_DESCRIPTION = """\
Answers which devices every ResourceClaim would get, without a cluster: reads ResourceSlices, DeviceClasses,
ResourceClaims, ResourceClaimTemplates, Nodes and Pods of any DRA driver, and prints the complete
status.allocation of each claim that has none, or why there is none. Claims that are allocated hold their
devices. Nothing is written anywhere.

The open claims of a pod are decided together, for one node: all or none. Claims of no pod are decided one at
a time in the order given, each on what the ones before it left; with --node or --all-nodes all together.
"""
_EPILOG = """\
examples:
  kubectl get resourceslices,deviceclasses,nodes,resourceclaims,resourceclaimtemplates,pods -A -o yaml \\
      >cluster.yaml
  tangram allocate -f cluster.yaml -f pod.yaml             would the pod of pod.yaml get its GPUs, and which
  tangram allocate -f cluster.yaml --node worker-3         what one node can do for all claims together
  tangram allocate -f cluster.yaml --features k8s-1.36 --policy first-fit
                                                           what kube-scheduler 1.36 would do
  kubectl get … -o json | tangram allocate -f - -o json    from standard input, for programs
  tangram allocate --jsonl <problems.jsonl                 one List per line in, one answer per line out

policies:
  tangram      the best fit (default)
  first-fit    the first devices that fit, in the order of kube-scheduler

features: latest (default), none, k8s-1.34 … k8s-1.37 (a version of Kubernetes with its default feature gates
and its faults), or a comma list of gates such as PartitionableDevices,ConsumableCapacity; after a version,
Name adds a gate and -Name takes one away: k8s-1.36,-DeviceTaints

exit codes:
  0 every claim has an allocation    1 internal error    2 bad input or usage    3 some claim has none
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Gives the command its texts, flags and action."""
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.add_argument(
        "-f",
        "--filename",
        metavar="FILE",
        action="append",
        default=[],
        help="objects as YAML or JSON, also Lists and several documents; - is standard input; repeatable",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--node", metavar="NAME", default="", help="decide for this node")
    where.add_argument(
        "--all-nodes", action="store_true", help="answer for each node by itself, as if it were the only one"
    )
    parser.add_argument(
        "--policy",
        choices=[policy.value for policy in Policy],
        default=Policy.TANGRAM.value,
        help="which of the devices that are allowed (default: tangram)",
    )
    parser.add_argument(
        "--features", metavar="NAMES", default="latest", help="what is allowed, see below (default: latest)"
    )
    parser.add_argument(
        "--as",
        dest="role",
        choices=("controller", "scheduler"),
        help="who asks: device classes of Tangram match the devices of its controller only for the controller"
        " (default: controller; scheduler if --features names a version of Kubernetes)",
    )
    parser.add_argument(
        "-o", "--output", choices=("table", "json", "yaml"), default="table", help="form (default: table)"
    )
    parser.add_argument(
        "--jsonl",
        action="store_true",
        help="read a List per line, answer each with a line of JSON; a bad line is answered with an error",
    )
    parser.add_argument(
        "--now", action="store_true", help="set allocationTimestamp; without, equal input has equal output"
    )
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    command = _Command(arguments)
    if arguments.jsonl:
        return command.lines()
    if not arguments.filename:
        raise UsageError("no objects are given", next_step="name a file with -f, or -f - for standard input")
    objects = [item for name in arguments.filename for item in _objects(name)]
    return command.once(objects)


def _objects(name: str) -> list[FileObject]:
    if name != "-":
        return read_objects(Path(name))
    return parse_objects(sys.stdin.buffer.read(), name="standard input")


class _Command:
    def __init__(self, arguments: argparse.Namespace) -> None:
        features = parse_features(arguments.features)
        role = arguments.role or ("scheduler" if features.name.startswith("k8s-") else "controller")
        self._options = Options(
            features=features, policy=Policy(arguments.policy), controller=role == "controller"
        )
        self._arguments = arguments

    def once(self, objects: Iterable[FileObject]) -> int:
        """Answers one problem in the form asked for."""
        problem = self._problem(objects)
        if problem.ignored:
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(problem.ignored.items()))
            print(f"ignored, as no allocation depends on it: {kinds}", file=sys.stderr)
        by_node = self._answers(problem)
        output = self._arguments.output
        if output == "table":
            sys.stdout.write(_table(by_node))
        else:
            body = self._body(by_node)
            sys.stdout.write(as_yaml(body) if output == "yaml" else as_json(body, indent=2) + "\n")
        answers = [answer for answers in by_node.values() for answer in answers]
        return 0 if all(answer.allocation is not None for answer in answers) else 3

    def lines(self) -> int:
        """Answers one problem per line."""
        names = self._arguments.filename or ["-"]
        if self._arguments.output == "yaml":
            raise UsageError("--jsonl answers in JSON", next_step="leave --output out")
        if len(names) > 1:
            raise UsageError("--jsonl reads one file", next_step="give one -f, or none for standard input")
        if names == ["-"]:
            self._answer_lines(sys.stdin.buffer)
            return 0
        try:
            file = Path(names[0]).open("rb")  # noqa: SIM115 - closed below; only opening it may fail so
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            raise UsageError(
                f"{names[0]}: cannot be read: {getattr(error, 'strerror', None) or error}",
                next_step="check the path",
            ) from None
        with file:
            self._answer_lines(file)
        return 0

    def _answer_lines(self, lines: Iterable[bytes]) -> None:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                sys.stdout.write(as_json(self._line(line, number)) + "\n")
                sys.stdout.flush()

    def _line(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            problem = self._problem(parse_objects(line, name=f"line {number}"))
            return self._body(self._answers(problem))
        except TangramError as error:
            return {"error": str(error)}

    def _problem(self, objects: Iterable[FileObject]) -> Problem:
        together = bool(self._arguments.node or self._arguments.all_nodes)
        return problem_of(objects, loose_together=together)

    def _answers(self, problem: Problem) -> dict[str, list[Answer]]:
        """Node → answers for it alone with --all-nodes; else all answers under the empty name."""
        timestamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if self._arguments.now else ""
        nodes = chosen_nodes(problem, self._arguments.node)
        if not self._arguments.all_nodes:
            placer = Placer(problem, self._options, timestamp=timestamp)
            return {"": placer.answers(nodes, named=bool(self._arguments.node))}
        placer = Placer(problem, self._options, timestamp=timestamp)
        return {node: placer.copy().answers([node], named=True) for node in nodes}

    def _body(self, by_node: dict[str, list[Answer]]) -> dict[str, Any]:
        if not self._arguments.all_nodes:
            return {"claims": [_claim(answer) for answer in by_node[""]]}
        return {
            "nodes": [
                {"node": node, "claims": [_claim(answer) for answer in answers]}
                for node, answers in by_node.items()
            ]
        }


def _claim(answer: Answer) -> dict[str, Any]:
    namespace, name = answer.claim
    return {
        "namespace": namespace,
        "name": name,
        "node": answer.node or None,
        "allocation": answer.allocation,
        "error": answer.error,
        "reasons": answer.reasons,
    }


def _table(by_node: dict[str, list[Answer]]) -> str:
    rows = [("CLAIM", "NODE", "DEVICES")]
    for node, answers in by_node.items():
        rows += [row for answer in answers for row in _rows(answer, node)]
    if len(rows) == 1:
        return "no claim waits for an allocation\n"
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return "".join(f"{claim:<{widths[0]}}  {node:<{widths[1]}}  {text}\n" for claim, node, text in rows)


def _rows(answer: Answer, node: str) -> Sequence[tuple[str, str, str]]:
    claim, place = "/".join(answer.claim), answer.node or node or "-"
    if answer.allocation is None:
        texts = (
            [f"none: {answer.error}"] if answer.error else [f"none: {text}" for text in answer.reasons[:1]]
        )
        texts += [f"      {text}" for text in answer.reasons[1:]]
    else:
        texts = [_device(result) for result in answer.allocation.devices.results or ()] or [
            "no device asked for"
        ]
    return [(claim, place, texts[0]), *(("", "", text) for text in texts[1:])]


def _device(result: DeviceAllocationResult) -> str:
    parts = [device_text(result)]
    if result.admin_access:
        parts.append("admin access")
    for name, amount in (result.consumed_capacity or {}).items():
        parts.append(f"{name} {amount}")
    return ", ".join(parts)
