"""What is not as expected, as text: pure questions to a State."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, assert_never

from tangram.model.links import LinkMatrix, LinkRow
from tangram.playground.objects import (
    Object,
    allocated,
    attribute,
    claim_names,
    gpu_of,
    phase,
    results,
    uid,
)
from tangram.playground.scenarios.schema import (
    ClaimsExpectation,
    Devices,
    EventExpectation,
    Expectation,
    HeldExpectation,
    LogExpectation,
    ObjectExpectation,
    PodsExpectation,
    PublishedExpectation,
)
from tangram.playground.scenarios.world import Container, State

Memory = Mapping[str, object]
"""pod → what `remember` kept of it"""


def unmet(expectation: Expectation, state: State, memory: Memory) -> list[str]:
    """Empty if it holds; else what is different, one thing each."""
    match expectation:
        case PodsExpectation():
            return _pods(expectation, state, memory)
        case ClaimsExpectation():
            return _claims(expectation, state)
        case EventExpectation():
            return _event(expectation, state)
        case LogExpectation():
            return _log(expectation, state)
        case ObjectExpectation():
            return _object(expectation, state)
        case HeldExpectation():
            return held_problems(state, expectation.held)
        case PublishedExpectation():
            return _published(expectation, state)
        case _:
            assert_never(expectation)


def wanted_logs(expectation: Expectation, state: State) -> list[Container]:
    """The logs that `unmet` looks at."""
    if isinstance(expectation, PodsExpectation) and expectation.sees:
        return [
            (pod["metadata"]["name"], each["name"])
            for pod in _chosen(expectation, state)
            for each in pod["spec"]["containers"]
        ]
    if isinstance(expectation, LogExpectation):
        pod = state.find("Pod", expectation.log)
        return [(expectation.log, _container(expectation, pod))] if pod else []
    return []


def remembered(pod: Object, state: State) -> object:
    """What must be equal for a pod to be `unchanged`."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    containers = [(each["name"], each.get("containerID"), each["restartCount"]) for each in statuses]
    devices = [
        (result["pool"], result["device"]) for claim in state.claims_of(pod) for result in results(claim)
    ]
    return uid(pod), phase(pod), containers, devices


def held_problems(state: State, count: int) -> list[str]:
    """What is against: `count` claims allocated, and nodes holding exactly these."""
    claims = {uid(claim): claim["metadata"]["name"] for claim in state.objects["ResourceClaim"]}
    live = {uid(claim) for claim in state.objects["ResourceClaim"] if allocated(claim)}
    problems = [f"{len(live)} claims are allocated, not {count}"] if len(live) != count else []
    for what, found in (("the state", state.held), ("a CDI file", state.cdi)):
        problems += [f"a node holds {what} of {claims.get(each, each)}" for each in sorted(found - live)]
        problems += [f"no node holds {what} of claim {claims[each]}" for each in sorted(live - found)]
    return problems


# --- pods ---------------------------------------------------------------------------------------------------


def _chosen(expectation: PodsExpectation, state: State) -> list[Object]:
    if isinstance(expectation.pods, list):
        return [pod for name in expectation.pods if (pod := state.find("Pod", name)) is not None]
    wanted = expectation.pods.items()
    return [pod for pod in state.objects["Pod"] if wanted <= (pod["metadata"].get("labels") or {}).items()]


def _pods(expectation: PodsExpectation, state: State, memory: Memory) -> list[str]:
    pods = _chosen(expectation, state)
    if isinstance(expectation.pods, list):
        present = {pod["metadata"]["name"] for pod in pods}
        problems = [f"there is no pod {name}" for name in expectation.pods if name not in present]
    else:
        problems = []
        if len(pods) != expectation.count:
            labels = ",".join(f"{key}={value}" for key, value in expectation.pods.items())
            problems.append(f"{len(pods)} pods have {labels}, not {expectation.count}")
    for pod in pods:
        problems += [
            f"pod {pod['metadata']['name']} {each}" for each in _pod(expectation, pod, state, memory)
        ]
    held = [_keys(state.claims_of(pod)) for pod in pods]
    if expectation.between == "apart" and any(a & b for a, b in combinations(held, 2)):
        problems.append("two of the pods have a device in common")
    if expectation.between == "shared" and any(a != b or not a for a, b in combinations(held, 2)):
        problems.append("the pods do not have the same devices")
    return problems


def _pod(expectation: PodsExpectation, pod: Object, state: State, memory: Memory) -> list[str]:
    problems = []
    if expectation.phase and phase(pod) != expectation.phase:
        problems.append(f"is {phase(pod)}, not {expectation.phase}")
    node = pod["spec"].get("nodeName", "")
    if expectation.node and node != expectation.node:
        problems.append(f"is on {node or 'no node'}, not {expectation.node}")
    claims = state.claims_of(pod)
    problems += _devices(expectation, claims, state)
    if expectation.sees:
        problems += [each for spec in pod["spec"]["containers"] for each in _sees(pod, spec, state)]
    if expectation.unchanged:
        name = pod["metadata"]["name"]
        if name not in memory:
            problems.append("was not remembered")
        elif (now := remembered(pod, state)) != memory[name]:
            problems.append(f"has changed: it was {memory[name]}, it is {now}")
    return problems


def _sees(pod: Object, spec: Object, state: State) -> list[str]:
    """Of one container; it is to have printed `env` and `ls /dev/nvidia*`."""
    log = state.logs.get((pod["metadata"]["name"], spec["name"]), "")
    names = dict(claim_names(pod))
    wanted = [names.get(each["name"], "") for each in (spec.get("resources") or {}).get("claims") or ()]
    claims = [claim for claim in state.claims_of(pod) if claim["metadata"]["name"] in wanted]
    devices = [device for claim in claims for device in state.devices(claim)]
    uuids = {attribute(each, "uuid") for each in devices if attribute(each, "type") != "mig"}
    instances = sum(attribute(each, "type") == "mig" for each in devices)
    variables = dict(re.findall(r"^(TANGRAM_\w+)=(.*)$", log, re.MULTILINE))
    files = set(re.findall(r"/dev/nvidia\d+", log))
    printed, made = (
        {
            each
            for name, value in variables.items()
            if name.startswith(f"TANGRAM_{kind}_UUIDS")
            for each in value.split(",")
            if each
        }
        for kind in ("GPU", "MIG")
    )
    problems = []
    if len(made) != instances or not all(each.startswith("MIG-") for each in made):
        problems.append(f"reads the MIG UUIDs {sorted(made)} for {instances} instances")
    if printed != uuids:
        problems.append(f"reads the UUIDs {sorted(printed)}, not {sorted(map(str, uuids))}")
    if len(files) != len({gpu_of(each) for each in devices}):
        problems.append(f"sees {sorted(files)} for {len(uuids)} GPUs")
    if claims and variables.get("TANGRAM_CLAIM_UID") not in {uid(claim) for claim in claims}:
        problems.append(f"reads TANGRAM_CLAIM_UID={variables.get('TANGRAM_CLAIM_UID')}")
    if not claims and (wanted or variables):
        problems.append(f"has no claim, but reads {sorted(variables)}" if variables else "has no claim yet")
    return [f"container {spec['name']} {problem}" for problem in problems]


# --- claims and devices -------------------------------------------------------------------------------------


def _keys(claims: Iterable[Object]) -> frozenset[tuple[str, str]]:
    return frozenset((result["pool"], result["device"]) for claim in claims for result in results(claim))


def _devices(expectation: Devices, claims: Sequence[Object], state: State) -> list[str]:
    devices = [device for claim in claims for device in state.devices(claim)]
    problems = []
    if expectation.gpus is not None and len(devices) != expectation.gpus:
        problems.append(f"has {len(devices)} GPUs, not {expectation.gpus}")
    for name, value in expectation.attributes.items():
        others = sorted(
            {str(attribute(device, name)) for device in devices if attribute(device, name) != value}
        )
        if others or not devices:
            problems.append(f"has GPUs whose {name} is {' and '.join(others) or 'unknown'}, not {value}")
    for name in expectation.same:
        values = {str(attribute(device, name)) for device in devices}
        if len(values) != 1 or "None" in values:
            problems.append(
                f"has GPUs that differ in {name}: {', '.join(sorted(values)) or 'there are none'}"
            )
    if expectation.linked and not _linked(claims, devices):
        problems.append("has GPUs that are not all linked to each other")
    return problems


def _linked(claims: Iterable[Object], devices: Sequence[Object]) -> bool:
    if len({pool for pool, _ in _keys(claims)}) != 1:
        return False
    rows = {
        attribute(each, "ordinal"): LinkRow.decode(attribute(each, "nvlinkLinks") or "") for each in devices
    }
    return LinkMatrix(rows).fully_linked(rows)


def _claims(expectation: ClaimsExpectation, state: State) -> list[str]:
    if expectation.claim:
        claim = state.find("ResourceClaim", expectation.claim)
        claims = [] if claim is None else [claim]
    else:
        pod = state.find("Pod", expectation.claims_of)
        claims = [] if pod is None else state.claims_of(pod)
    if not claims:
        return [f"there is no claim {expectation.claim or f'of pod {expectation.claims_of}'}"]
    return [
        f"claim {claim['metadata']['name']} {problem}"
        for claim in claims
        for problem in _claim(expectation, claim, state)
    ]


def _claim(expectation: ClaimsExpectation, claim: Object, state: State) -> list[str]:
    status = claim.get("status") or {}
    problems = _devices(expectation, [claim], state)
    if expectation.allocated is not None and allocated(claim) != expectation.allocated:
        problems.append("is allocated" if allocated(claim) else "is not allocated")
    users = sorted(each["name"] for each in status.get("reservedFor") or ())
    if expectation.reserved_for is not None and users != sorted(expectation.reserved_for):
        problems.append(f"is reserved for {', '.join(users) or 'nobody'}")
    conditions = [
        condition
        for device in status.get("devices") or ()
        for condition in device.get("conditions") or ()
        if condition["type"] == "Ready"
    ]
    if expectation.ready is not None:
        # One entry each; of several shares of a device, whose ids servers before 1.36 forget, one together.
        known = {(result["pool"], result["device"], result.get("shareID")) for result in results(claim)}
        ready = len(conditions) == len(known) and all(each["status"] == "True" for each in conditions)
        failed = any(each["status"] == "False" for each in conditions)
        if not (ready if expectation.ready else failed):
            found = [f"{each['status']} ({each.get('message', '')})" for each in conditions]
            problems.append(f"has devices whose conditions Ready are {', '.join(found) or 'not there'}")
    if expectation.message and not any(expectation.message in each.get("message", "") for each in conditions):
        problems.append(f"has no condition that says {expectation.message!r}")
    return problems


# --- the rest -----------------------------------------------------------------------------------------------


def _event(expectation: EventExpectation, state: State) -> list[str]:
    name = expectation.pod or expectation.claims_of
    pod = state.find("Pod", name)
    if pod is None:
        return [f"there is no pod {name}"]
    about = {uid(each) for each in ([pod] if expectation.pod else state.claims_of(pod))}
    texts = [event.text for event in state.events if event.uid in about and event.reason == expectation.event]
    what = f"event {expectation.event} about {expectation.pod or f'claims of {expectation.claims_of}'}"
    matching = [text for text in texts if all(part in text for part in expectation.text)]
    if expectation.absent:
        return [f"there is an {what}: {text}" for text in matching]
    if matching:
        return []
    return [f"there is no {what}" + (f" that says so, only: {' | '.join(texts)}" if texts else "")]


def _container(expectation: LogExpectation, pod: Object) -> str:
    return expectation.container or str(pod["spec"]["containers"][0]["name"])


def _log(expectation: LogExpectation, state: State) -> list[str]:
    pod = state.find("Pod", expectation.log)
    if pod is None:
        return [f"there is no pod {expectation.log}"]
    log = state.logs.get((expectation.log, _container(expectation, pod)), "")
    missing = [part for part in expectation.text if part not in log]
    tail = log[-500:] or "(nothing)"
    return [f"the log of {expectation.log} does not say {part!r}; it ends with: {tail}" for part in missing]


def _object(expectation: ObjectExpectation, state: State) -> list[str]:
    named = f"{expectation.object.kind} {expectation.object.name}"
    found = state.find(expectation.object.kind, expectation.object.name)
    if expectation.gone:
        return [] if found is None else [f"{named} is there"]
    if found is None:
        return [f"there is no {named}"]
    return [f"{named}: {problem}" for problem in _different(expectation.has, found, "")]


def _different(wanted: Any, found: Any, path: str) -> list[str]:
    if isinstance(wanted, dict) and isinstance(found, dict):
        return [
            problem
            for key, value in wanted.items()
            for problem in _different(value, found.get(key), f"{path}.{key}".lstrip("."))
        ]
    return [] if wanted == found else [f"{path} is {found!r}, not {wanted!r}"]


def _published(expectation: PublishedExpectation, state: State) -> list[str]:
    gpus = state.gpus()
    problems = [
        f"{node} publishes {count} GPUs, not {wanted}"
        for node, wanted in expectation.published.items()
        if (count := sum(each == node for each, _ in gpus)) != wanted
    ]
    if expectation.healthy is not None:
        healthy = sum(
            all(attribute(each, "healthy") for each in devices)
            for (node, _), devices in gpus.items()
            if node in expectation.published
        )
        if healthy != expectation.healthy:
            problems.append(f"{healthy} of these are healthy, not {expectation.healthy}")
    return problems
