"""Steps and states as text for people."""

from collections.abc import Iterable

from tangram.playground.objects import allocated, attribute, leaving, phase
from tangram.playground.scenarios.schema import (
    Action,
    Apply,
    ClaimsExpectation,
    Delete,
    Disturb,
    EventExpectation,
    Expect,
    Expectation,
    GpuChange,
    HeldExpectation,
    LogExpectation,
    ObjectExpectation,
    PodsExpectation,
    PublishedExpectation,
    Remember,
)
from tangram.playground.scenarios.world import State

_EVENTS = 20


def action_text(action: Action) -> str:
    """A step in a few words: `apply Pod a, Pod b`."""
    match action:
        case Apply(objects=objects):
            names = (f"{each['kind']} {each['metadata'].get('name', '')}" for each in objects)
            return f"apply {_some(names)}"
        case Delete(objects=deletions):
            force = " by force" if any(each.force for each in deletions) else ""
            return f"delete {_some(f'{each.kind} {each.name}' for each in deletions)}{force}"
        case Disturb(what=what, kill=kill):
            where = f" of {what.node}" if what.node else ""
            return f"{'kill' if kill else 'restart'} the {what.component}{where}"
        case GpuChange() as change:
            return f"{_gpus(change)} of {change.node or f'pod {change.pod}'}: {change.state}"
        case Remember(pods=pods):
            return f"remember {_some(pods)}"
        case Expect(expectations=expectations):
            return f"expect {_some(expectation_text(each) for each in expectations)}"


def expectation_text(expectation: Expectation) -> str:
    """What an expectation is about: `pods a, b Running`."""
    match expectation:
        case PodsExpectation(pods=pods):
            named = _some(pods) if isinstance(pods, list) else ",".join(f"{k}={v}" for k, v in pods.items())
            return f"{expectation.phase.lower()} {named}" if expectation.phase else named
        case ClaimsExpectation():
            return f"claim {expectation.claim}" if expectation.claim else f"claims of {expectation.claims_of}"
        case EventExpectation():
            return f"{'no ' if expectation.absent else ''}event {expectation.event}"
        case LogExpectation():
            return f"log of {expectation.log}"
        case ObjectExpectation(object=what):
            return f"{what.kind} {what.name}{' gone' if expectation.gone else ''}"
        case HeldExpectation(held=held):
            return f"{held or 'no'} claims held"
        case PublishedExpectation(published=published):
            return f"{sum(published.values())} GPUs published"


def state_text(state: State) -> str:
    """What a person would look at first: pods, claims, events."""
    lines = ["pods:"]
    for pod in state.objects["Pod"]:
        going = ", leaving" if leaving(pod) else ""
        node = pod["spec"].get("nodeName") or "no node"
        lines.append(f"  {pod['metadata']['name']}: {phase(pod)}{going}, {node}")
    lines.append("claims:")
    for claim in state.objects["ResourceClaim"]:
        users = [each["name"] for each in (claim.get("status") or {}).get("reservedFor") or ()]
        gpus = [f"{each['name']} ({attribute(each, 'productName')})" for each in state.devices(claim)]
        has = f"allocated {', '.join(gpus)}" if allocated(claim) else "not allocated"
        lines.append(f"  {claim['metadata']['name']}: {has}, reserved for {', '.join(users) or 'nobody'}")
    lines.append("events:")
    lines += [f"  {each.kind} {each.name}: {each.reason}: {each.text}" for each in state.events[-_EVENTS:]]
    return "\n".join(lines)


def _gpus(change: GpuChange) -> str:
    if change.index is not None:
        return f"GPU {change.index}"
    return "a free GPU" if change.free else "the GPUs"


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")
