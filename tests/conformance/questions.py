"""The table of questions: what is asked of an API server, read from `cases/*.yaml`.

A file is a list of cases. A case has a namespace of its own and `steps`, asked in order:

    - case: conflict
      steps:
        - ask: POST configmaps
          body: {metadata: {name: a}}
          save: {old: metadata.resourceVersion}
        - ask: PUT configmaps/a
          body: {metadata: {name: a, resourceVersion: $old}}

`ask` is a method and `<plural>[/<name>[/<subresource>]][?query]`, or a path from `/` on. `$case` (the case's
name, also its namespace) and what `save` took from earlier answers are replaced everywhere. A body without
kind gets that of its resource; `type` is the media type, `raw` a body that is not JSON as it stands,
`headers` more of them. `do: compact` makes the server forget its history.

With `each`, a list of {name, set, …}, the steps are asked once per entry, `$name` is the entry's, and `set`
changes the body of the last step: {path: value}, dots between keys, numbers index lists, null deletes.
`{$repeat: [x, 65]}` is a long string or list, in which `$i` is the position.
"""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tangram.kube.resources import Resource
from tangram.testing.apiserver import RESOURCES

FILES = Path(__file__).parent / "cases"
_BY_PLURAL = {resource.plural: resource for resource in RESOURCES}
DELETED = "$delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One request. Strings may hold `$names` until it is asked."""

    method: str = ""
    target: str = ""
    body: Any = None
    raw: str | None = None
    type: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    save: Mapping[str, str] = field(default_factory=dict)
    do: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Steps in a namespace `name`."""

    name: str
    theme: str
    steps: Sequence[Step]
    managed_fields: bool = False


def load() -> list[Case]:
    """All cases of all files."""
    cases = []
    for path in sorted(FILES.glob("*.yaml")):
        for entry in yaml.safe_load(path.read_text()) or []:
            if "case" in entry:
                cases += list(_cases(entry, theme=path.stem))
    names = [case.name for case in cases]
    assert len(set(names)) == len(names), sorted(name for name in names if names.count(name) > 1)
    return cases


def _cases(entry: Mapping[str, Any], *, theme: str) -> Iterator[Case]:
    kept = bool(entry.get("managedFields"))
    if "each" not in entry:
        steps = [_step(each) for each in entry["steps"]]
        yield Case(name=entry["case"], theme=theme, steps=steps, managed_fields=kept)
        return
    for variant in entry["each"]:
        name = f"{entry['case']}-{variant['name']}"
        raw = copy.deepcopy(entry["steps"])
        raw[-1] |= {key: value for key, value in variant.items() if key not in {"name", "set"}}
        raw[-1] = copy.deepcopy(raw[-1])
        for path, value in (variant.get("set") or {}).items():
            raw[-1]["body"] = _set(raw[-1].get("body"), path.split("."), value)
        yield Case(name=name, theme=theme, steps=[_step(each) for each in raw], managed_fields=kept)


def _step(entry: Mapping[str, Any]) -> Step:
    if "do" in entry:
        return Step(do=entry["do"])
    method, _, target = entry["ask"].partition(" ")
    options = {key: value for key, value in entry.items() if key != "ask"}
    options["body"] = _expand(options.get("body"))
    return Step(method=method, target=target, **options)


def _set(target: Any, path: Sequence[str], value: Any) -> Any:
    key: Any = int(path[0]) if isinstance(target, list) else path[0]
    if target is None:
        target = {}
    if len(path) > 1:
        child = target[key] if isinstance(target, list) else target.get(key)
        target[key] = _set(child, path[1:], value)
    elif value == DELETED:
        del target[key]
    else:
        target[key] = value
    return target


def _expand(value: Any) -> Any:
    """Writes `$repeat` out."""
    if isinstance(value, list):
        return [_expand(item) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"$repeat"}:
        item, count = value["$repeat"]
        items = [replace(_expand(item), {"i": str(index)}) for index in range(count)]
        return "".join(items) if isinstance(item, str) and "$i" not in item else items
    if set(value) == {"$keys"}:
        name, item, count = value["$keys"]
        return {replace(name, {"i": str(index)}): _expand(item) for index in range(count)}
    return {key: _expand(item) for key, item in value.items()}


def replace(value: Any, names: Mapping[str, str]) -> Any:
    """`value` with `$name` in its strings and keys replaced."""
    if isinstance(value, list):
        return [replace(item, names) for item in value]
    if isinstance(value, dict):
        return {replace(key, names): replace(item, names) for key, item in value.items()}
    if not isinstance(value, str) or "$" not in value:
        return value
    return re.sub(r"\$([A-Za-z]+)", lambda match: names.get(match[1], match[0]), value)


def path_of(target: str, *, namespace: str) -> tuple[str, Resource | None]:
    """The path and query of a target, and the resource it names."""
    if target.startswith("/"):
        return target, None
    path, separator, query = target.partition("?")
    plural, _, rest = path.partition("/")
    everywhere = plural.startswith("*")
    resource = _BY_PLURAL[plural.removeprefix("*")]
    base = resource.path(namespace="" if everywhere else namespace if resource.namespaced else "")
    return base + ("/" + rest if rest else "") + separator + query, resource
