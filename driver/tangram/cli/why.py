"""`tangram why`: what keeps a pod or a claim from its devices, GPU by GPU."""

import argparse
import asyncio
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from tangram import __version__
from tangram.allocation.structured import Code, Options
from tangram.base.errors import UsageError
from tangram.base.settings import API_VERSION
from tangram.cli.livecluster import read_cluster
from tangram.cli.placing import Answer, Placer, chosen_nodes
from tangram.cli.problems import ClaimName, Group, Problem, problem_of
from tangram.cli.results import as_json, as_yaml, device_text
from tangram.kube.client import Client
from tangram.kube.objectfiles import FileObject, read_objects
from tangram.kube.objects import AllocationResult, Pod, ResourceClaim

_DESCRIPTION = """\
Says why a pod or a ResourceClaim has no devices yet: every device with what refuses it, in groups, the
shortest first; or what keeps those it has from being ready. It asks the running cluster (or reads files, with
-f) and only reads. With kubectl-tangram in the PATH, `kubectl tangram why` does the same.
"""
_EPILOG = """\
examples:
  tangram why train-0                        the pod of that name, else the claim
  tangram why pod/train-0 -n research
  tangram why claim/train-0-gpus-x7k2f
  tangram why train-0 -o json                for programs
  tangram why train-0 -f cluster.yaml        from the objects of a file instead of a cluster

what it does not know: which nodes kube-scheduler refused for the pod lately, and the pod's claims on CPU and
memory; the events of the claim tell (kubectl describe resourceclaim)

exit codes:
  0 it has its devices, or could have them now    1 the cluster cannot be asked    2 bad input or usage
  3 the devices are refused
"""
_SHOWN_DEVICES = 8
_KINDS = {
    word: kind
    for kind, words in {
        "pod": ("pod", "pods", "po"),
        "claim": ("claim", "claims", "resourceclaim", "resourceclaims"),
    }.items()
    for word in words
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Gives the command its texts, flags and action."""
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.add_argument("target", metavar="[pod/|claim/]NAME", help="a pod, or a ResourceClaim")
    parser.add_argument(
        "-n", "--namespace", metavar="NAME", default="default", help="of pod or claim (default: default)"
    )
    parser.add_argument("--kubeconfig", metavar="FILE", default="", help="default: as kubectl finds it")
    parser.add_argument("--context", metavar="NAME", default="", help="context of the kubeconfig")
    parser.add_argument(
        "-f",
        "--filename",
        metavar="FILE",
        action="append",
        default=[],
        help="read objects from a file (YAML or JSON) instead of a cluster; repeatable",
    )
    parser.add_argument(
        "-o", "--output", choices=("text", "json", "yaml"), default="text", help="form (default: text)"
    )
    parser.set_defaults(command=_run)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """A claim of the target that is allocated."""

    claim: ResourceClaim
    allocation: AllocationResult


class _Condition(msgspec.Struct, frozen=True):
    type: str = ""
    status: str = ""
    message: str = ""


class _DeviceStatus(msgspec.Struct, frozen=True):
    """What is read of an entry of `status.devices`."""

    device: str = ""
    conditions: tuple[_Condition, ...] | None = None


def _run(arguments: argparse.Namespace) -> int:
    if arguments.filename:
        objects = [item for name in arguments.filename for item in read_objects(Path(name))]
    else:
        objects = asyncio.run(_from_cluster(arguments))
    kind, name = _parse(arguments.target)
    concerned = [item for item in objects if item.kind != "Pod" or _concerns(item, name)]
    problem = problem_of(concerned, loose_together=False)
    groups, held = _target(problem, kind, (arguments.namespace, name))
    answers = _answers(problem, groups)
    if arguments.output == "text":
        sys.stdout.write(_text(answers, held))
    else:
        sys.stdout.write(_structured(answers, held, arguments.output))
    return 0 if all(answer.allocation is not None for answer in answers) else 3


async def _from_cluster(arguments: argparse.Namespace) -> list[FileObject]:
    client = await Client.connect(
        kubeconfig=arguments.kubeconfig,
        context=arguments.context,
        user_agent=f"tangram-why/{__version__}",
    )
    try:
        return await read_cluster(client, namespace=arguments.namespace)
    finally:
        await client.close()


def _answers(problem: Problem, groups: tuple[Group, ...]) -> list[Answer]:
    if not groups:
        return []
    placer = Placer(replace(problem, groups=groups), Options())
    return placer.answers(chosen_nodes(problem, ""), named=False)


def _parse(target: str) -> tuple[str, str]:
    """`pod`, `claim` or nothing, and the name. UsageError for anything else."""
    prefix, slash, name = target.rpartition("/")
    kind = _KINDS.get(prefix.lower()) if slash else ""
    if kind is None or not name:
        raise UsageError(
            f"{target!r} names neither a pod nor a claim", next_step="write pod/NAME, claim/NAME, or NAME"
        )
    return kind, name


def _concerns(item: FileObject, name: str) -> bool:
    """Whether a pod has this name, or uses a claim of it: the others may be as unfinished as they like."""
    pod = item.decode(Pod)
    entries = pod.spec.resource_claims or ()
    made = pod.status.resource_claim_statuses or ()
    return name in (pod.metadata.name, *(entry.resource_claim_name for entry in (*entries, *made)))


def _target(problem: Problem, kind: str, name: ClaimName) -> tuple[tuple[Group, ...], list[_Held]]:
    """The group of the pod or claim, and its claims that are allocated. UsageError if there is no such."""
    names = problem.pods.get(name) if kind != "claim" else None
    if names is None and kind != "pod" and name in problem.by_name:
        names = [name]
    if names is None:
        what = {"pod": "pod", "claim": "claim", "": "pod and no claim"}[kind]
        raise UsageError(
            f"there is no {what} {'/'.join(name)} that asks for devices",
            next_step="see kubectl get pods,resourceclaims -A; -n names another namespace; the claims of"
            " a pod that ended are gone",
        )
    wanted = set(names)
    groups = tuple(
        group
        for group in problem.groups
        if wanted & {(claim.metadata.namespace, claim.metadata.name) for claim in group.claims}
    )
    held = [
        _Held(claim=claim, allocation=claim.allocation)
        for key in names
        if (claim := problem.by_name[key]).allocation is not None
    ]
    return groups, held


# --- text ---


def _text(answers: Sequence[Answer], held: Iterable[_Held]) -> str:
    lines = [line for item in held for line in _held_lines(item)]
    waiting = [answer for answer in answers if answer.allocation is None]
    lines += [line for answer in answers if answer not in waiting for line in _fitting_lines(answer)]
    if waiting:
        names = ", ".join("/".join(answer.claim) for answer in waiting)
        lines.append(f"{'claim' if len(waiting) == 1 else 'claims'} {names} cannot be allocated now:")
        first = waiting[0]  # all claims of a group have the same reasons
        lines += [f"  {text}" for text in ((first.error,) if first.error else first.reasons)]
        lines += _refusal_lines(first)
    return "\n".join(lines) + "\n"


def _held_lines(item: _Held) -> Iterable[str]:
    meta = item.claim.metadata
    yield f"claim {meta.namespace}/{meta.name} is allocated:"
    for result in item.allocation.devices.results or ():
        yield f"  {device_text(result)}"
    yield from (f"  {text}" for text in _not_ready(item.claim))
    users = [f"{consumer.resource}/{consumer.name}" for consumer in item.claim.consumers]
    yield f"  in use by {', '.join(users)}" if users else "  no pod uses it yet"


def _not_ready(claim: ResourceClaim) -> Iterable[str]:
    """What the drivers on the node say of devices that are allocated, and not ready for containers."""
    for entry in (claim.status.devices if claim.status else None) or ():
        try:
            device = msgspec.convert(entry, _DeviceStatus)
        except msgspec.ValidationError:
            continue  # nothing that a driver may write
        for condition in device.conditions or ():
            if (condition.type, condition.status) == ("Ready", "False"):
                yield f"{device.device} is not ready: {' '.join(condition.message.split())}"


def _fitting_lines(answer: Answer) -> Iterable[str]:
    assert answer.allocation is not None
    yield f"claim {'/'.join(answer.claim)} is not allocated, but fits on node {answer.node} now:"
    for result in answer.allocation.devices.results or ():
        yield f"  {device_text(result)}"
    yield f"  see its events: kubectl describe resourceclaim -n {answer.claim[0]} {answer.claim[1]}"


def _refusal_lines(answer: Answer) -> Iterable[str]:
    """Devices by what refuses them, the smallest groups first: there the least is missing. Those that are for
    other requests come last."""
    groups: dict[tuple[bool, str, str], list[str]] = {}
    for node, refusals in answer.refusals.items():
        for refusal in refusals:
            device = f"{node}/{refusal.device.device}"
            key = (refusal.code in (Code.CLASS, Code.ALLOCATOR), refusal.request, refusal.text)
            groups.setdefault(key, []).append(device)
    several = len({request for _, request, _ in groups}) > 1
    if groups:
        yield ""
        yield "refused devices:"
    ranked = sorted(groups.items(), key=lambda item: (item[0][0], len(item[1]), item[0]))
    for (_, request, text), devices in ranked:
        about = f"request {request}: " if several else ""
        shown = ", ".join(devices[:_SHOWN_DEVICES])
        more = f" and {len(devices) - _SHOWN_DEVICES} more" if len(devices) > _SHOWN_DEVICES else ""
        yield f"  {len(devices):>4}  {about}{text}"
        yield f"        {shown}{more}"


# --- for programs ---


def _structured(answers: Sequence[Answer], held: Iterable[_Held], form: str) -> str:
    claims = [*map(_held_body, held), *map(_answer_body, answers)]
    body = {"apiVersion": API_VERSION, "kind": "Why", "claims": claims}
    return as_yaml(body) if form == "yaml" else as_json(body, indent=2) + "\n"


def _held_body(item: _Held) -> dict[str, Any]:
    meta = item.claim.metadata
    return {
        "namespace": meta.namespace,
        "name": meta.name,
        "allocated": True,
        "allocation": item.allocation,
        "error": None,
        "reasons": [*_not_ready(item.claim)],
        "refusals": [],
    }


def _answer_body(answer: Answer) -> dict[str, Any]:
    return {
        "namespace": answer.claim[0],
        "name": answer.claim[1],
        "allocated": False,
        "allocation": answer.allocation,
        "error": answer.error,
        "reasons": answer.reasons,
        "refusals": [
            {
                "node": node,
                "claim": refusal.claim,
                "request": refusal.request,
                "driver": refusal.device.driver,
                "pool": refusal.device.pool,
                "device": refusal.device.device,
                "code": refusal.code,
                "text": refusal.text,
            }
            for node, refusals in answer.refusals.items()
            for refusal in refusals
        ],
    }
