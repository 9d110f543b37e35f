"""What an API server asks of derived attributes (KEP-6080), for claims from files, which none has seen."""

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import NamedTuple

from tangram.base.errors import CelCompileError, InvalidObjectError
from tangram.cel import derivation
from tangram.cel.program import BUDGET
from tangram.model.kubernetes import DeviceClaim, DeviceDerivedAttribute, DeviceRequest, ResourceClaimSpec

_MOST = 32
"""Of one (sub)request (`DeviceDerivedAttributesMaxSize` of resource/v1)."""
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAME = re.compile(rf"(?P<domain>{_LABEL}(\.{_LABEL})*)/(?P<id>[A-Za-z_][A-Za-z0-9_]*)")
_LONGEST = {"domain": 63, "id": 32}


class _Problem(NamedTuple):
    field: str
    text: str
    next_step: str


def check_derived(spec: ResourceClaimSpec, *, object_name: str, field: str) -> None:
    """Raises InvalidObjectError that names the field. `field`: that of `spec` in its object."""
    for problem in _problems(spec.devices, f"{field}.devices"):
        raise InvalidObjectError(
            problem.text, object_name=object_name, field=problem.field, next_step=problem.next_step
        )


def _problems(devices: DeviceClaim, field: str) -> Iterator[_Problem]:
    named = {c.match_attribute or c.distinct_attribute for c in devices.constraints or ()}
    cost = 0
    for path, attributes in _lists(devices.requests or (), f"{field}.requests"):
        if len(attributes) > _MOST:
            yield _Problem(path, f"has {len(attributes)} entries, more than {_MOST}", "leave some out")
        for index, attribute in enumerate(attributes):
            yield from _name_problems(attribute.name, named, f"{path}[{index}].name")
            where, found = f"{path}[{index}].expression", derivation(attribute.expression)
            if isinstance(found, CelCompileError):
                yield _Problem(where, str(found), "see docs/selectors.md")
                continue
            cost += found.estimated_cost
            if cost > BUDGET:
                text = f"those of the claim so far may cost {cost} units together, more than {BUDGET}"
                yield _Problem(where, text, "use fewer or shorter lists, and fewer macros inside macros")


def _lists(
    requests: Iterable[DeviceRequest], field: str
) -> Iterator[tuple[str, Sequence[DeviceDerivedAttribute]]]:
    """The lists of derived attributes, by their fields."""
    for number, request in enumerate(requests):
        if request.exactly:
            found = request.exactly.derived_attributes
            yield f"{field}[{number}].exactly.derivedAttributes", found or ()
        for index, sub in enumerate(request.first_available or ()):
            where = f"{field}[{number}].firstAvailable[{index}].derivedAttributes"
            yield where, sub.derived_attributes or ()


def _name_problems(name: str, named: Container[str | None], field: str) -> Iterator[_Problem]:
    match = _NAME.fullmatch(name)
    if match is None or any(len(match[part]) > longest for part, longest in _LONGEST.items()):
        text = f"{name[:100]!r} is not a domain, a slash and an identifier"
        yield _Problem(field, text, "write it as derived/numaNode is written")
    elif name not in named:
        text = f"{name} is in no constraint of the claim"
        yield _Problem(field, text, "name it in a matchAttribute or a distinctAttribute, or leave it out")
