"""Reads scenario files, strictly: every mistake is named by file, step and field."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tangram.base.errors import InvalidObjectError
from tangram.hardware.machines.schema import did_you_mean
from tangram.playground.machines import parse_machines
from tangram.playground.manifests import check_form, read_documents
from tangram.playground.scenarios.schema import (
    EXPECTATIONS,
    Action,
    Apply,
    ClaimsExpectation,
    Delete,
    Deletion,
    Disturb,
    Disturbance,
    EventExpectation,
    Expect,
    Expectation,
    GpuChange,
    ObjectExpectation,
    ObjectName,
    PodsExpectation,
    RawScenario,
    RawStep,
    Remember,
    Scenario,
    Step,
    Strict,
)

_KIND = "Scenario"
S = TypeVar("S", bound=Strict)
_DEFAULT_WITHIN_S = 60


def is_scenario(documents: Sequence[Any]) -> bool:
    """Whether a file's documents are meant as a scenario rather than as manifests."""
    return any(isinstance(content, dict) and content.get("kind") == _KIND for content in documents)


def load_scenario(path: Path) -> Scenario:
    """InvalidObjectError names file, step and field."""
    return scenario(path, read_documents(path)[1])


def scenario(path: Path, documents: Sequence[Any]) -> Scenario:
    """What `read_documents` read, as a scenario. InvalidObjectError names file, step and field."""
    contents = [content for content in documents if content is not None]
    if len(contents) != 1:
        raise InvalidObjectError(
            f"has {len(contents)} documents", object_name=str(path), next_step="a scenario stands alone"
        )
    raw = _convert(contents[0], RawScenario, object_name=str(path))
    steps = tuple(
        Step(label=f"{path.name}, steps[{number}]", action=_action(path, number, step))
        for number, step in enumerate(raw.steps)
    )
    return Scenario(
        name=path.name, about=raw.about, machines=parse_machines(",".join(raw.machines)), steps=steps
    )


def _action(path: Path, number: int, step: RawStep) -> Action:
    def fail(problem: str, *, field: str = "", next_step: str = "") -> InvalidObjectError:
        where = f"steps[{number}].{field}" if field else f"steps[{number}]"
        return InvalidObjectError(problem, object_name=str(path), field=where, next_step=next_step)

    given = [
        name
        for name in ("apply", "applyFile", "delete", "restart", "kill", "gpus", "remember", "expect")
        if getattr(step, "apply_file" if name == "applyFile" else name) is not None
    ]
    if len(given) != 1:
        raise fail(
            f"does {len(given)} things{': ' if given else ''}{', '.join(given)}",
            next_step="a step is one of apply, applyFile, delete, restart, kill, gpus, remember, expect",
        )
    if step.within_s is not None and step.expect is None:
        raise fail("belongs to expect", field="withinS", next_step="only expectations wait")
    if step.gpus is not None:
        targets = [step.gpus.pod, step.gpus.node]
        if all(targets) or not any(targets):
            raise fail("names a pod or a node, not both", field="gpus")
        if (step.gpus.index is not None) + step.gpus.free + bool(step.gpus.pod) > 1:
            raise fail("names GPUs in two ways", field="gpus", next_step="use one of pod, index, free")
        return step.gpus
    if step.expect is not None:
        expectations = tuple(
            _expectation(path, f"steps[{number}].expect[{position}]", content)
            for position, content in enumerate(step.expect)
        )
        return Expect(expectations=expectations, within_s=step.within_s or _DEFAULT_WITHIN_S)
    if step.delete is not None:
        return Delete(objects=tuple(step.delete))
    if step.remember is not None:
        return Remember(pods=tuple(step.remember))
    if disturbance := step.restart or step.kill:
        return Disturb(what=disturbance, kill=step.kill is not None)
    if step.apply_file is not None:
        file = path.parent / step.apply_file
        contents = [content for content in read_documents(file)[1] if content is not None]
        return Apply(objects=_objects(contents, f"{file}, document {{}}", first=1))
    return Apply(objects=_objects(step.apply or [], f"{path}: steps[{number}].apply[{{}}]", first=0))


def _objects(contents: Sequence[Any], label: str, *, first: int) -> tuple[dict[str, Any], ...]:
    for position, content in enumerate(contents, start=first):
        name = label.format(position)
        check_form(content, label=name)
        for field in ("apiVersion", "kind"):
            if not isinstance(content.get(field), str):
                raise InvalidObjectError("is missing, or not a string", object_name=name, field=field)
        if "namespace" in content["metadata"]:
            raise InvalidObjectError(
                "is not for a scenario to choose", object_name=name, field="metadata.namespace"
            )
    return tuple(contents)


def _expectation(path: Path, field: str, content: dict[str, Any]) -> Expectation:
    kind = next((kind for key, kind in EXPECTATIONS.items() if key in content), None)
    if kind is None:
        raise InvalidObjectError(
            "says nothing that could be checked",
            object_name=str(path),
            field=field,
            next_step=f"an expectation begins with one of {', '.join(EXPECTATIONS)}",
        )
    found = _convert(content, kind, object_name=str(path), field=field)
    problem = ""
    if isinstance(found, ClaimsExpectation | EventExpectation):
        names = [found.claim if isinstance(found, ClaimsExpectation) else found.pod, found.claims_of]
        if len([name for name in names if name]) != 1:
            problem = "names its claims in two ways, or in none"
    elif isinstance(found, PodsExpectation) and isinstance(found.pods, list):
        problem = "count is for pods by labels" if found.count is not None else ""
    elif isinstance(found, PodsExpectation) and (found.unchanged or found.count is None):
        problem = "pods by labels need a count, and cannot be compared with what was remembered"
    elif isinstance(found, ObjectExpectation) and found.gone == bool(found.has):
        problem = "says either what the object has, or that it is gone"
    if problem:
        raise InvalidObjectError(problem, object_name=str(path), field=field)
    return found


def _convert(content: Any, kind: type[S], *, object_name: str, field: str = "") -> S:
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        unknown = problem.partition("unknown field `")[2].removesuffix("`")
        parts = (kind, RawStep, Deletion, Disturbance, GpuChange, ObjectName)
        known = {each.encode_name for part in parts for each in msgspec.structs.fields(part)}
        raise InvalidObjectError(
            f"unknown field {unknown!r}" if unknown else problem,
            object_name=object_name,
            field=(field + path.removesuffix("`")).lstrip("."),
            next_step=did_you_mean(unknown, known) if unknown else "",
        ) from None
