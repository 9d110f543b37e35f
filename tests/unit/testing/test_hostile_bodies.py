"""Whatever a client sends to the fake API server: it is accepted, or refused as an ApiError."""

import contextlib
import copy
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.conformance.questions import load

from tangram.base.errors import ApiError
from tangram.testing.apiserver import JOBS, NAMESPACES, RESOURCES, FakeApiServer
from tangram.testing.apiserver.patches import strategic_patch

BY_PLURAL = {resource.plural: resource for resource in RESOURCES}
# The bodies of all questions are the soil: they have every field that a rule looks at.
BODIES = [
    (BY_PLURAL[step.target], step.body)
    for case in load()
    for step in case.steps
    if step.method == "POST" and step.target in BY_PLURAL and isinstance(step.body, dict)
]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    below = [found for key, item in items for found in paths(item, (*path, key))]
    return [path, *below[:200]] if path else below[:200]


@st.composite
def mutated(draw: st.DrawFn) -> tuple[Any, dict[str, Any]]:
    resource, body = draw(st.sampled_from(BODIES))
    body = copy.deepcopy(body)
    for _ in range(draw(st.integers(1, 2))):
        if not (places := paths(body)):
            break
        *way, last = draw(st.sampled_from(places))
        holder: Any = body
        for key in way:
            holder = holder[key]
        holder[last] = draw(VALUES)
    return resource, body


@given(mutated())
@settings(max_examples=300)
@example((JOBS, {"metadata": None, "spec": {"template": {"spec": {"containers": [{"name": "c"}]}}}}))
@example((NAMESPACES, {"metadata": None}))
def test_bodies(written: tuple[Any, dict[str, Any]]) -> None:
    resource, body = written
    server = FakeApiServer()
    namespace = "default" if resource.namespaced else ""
    with contextlib.suppress(ApiError):
        made = server._registry.create(resource, body, namespace=namespace)
        with contextlib.suppress(ApiError):
            server.patch(resource, body, name=made["metadata"]["name"], namespace=namespace)


@given(mutated(), VALUES)
@settings(max_examples=150)
def test_strategic_patches(written: tuple[Any, dict[str, Any]], target: Any) -> None:
    resource, patch = written
    with contextlib.suppress(ApiError, AttributeError, TypeError):  # the registry answers 422 to the latter
        strategic_patch(resource.kind, target, patch)
