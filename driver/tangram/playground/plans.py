"""What is to be played: scenarios, or plain manifests. Read and checked before anything is started."""

from collections.abc import Sequence
from pathlib import Path

from tangram.base.errors import AlreadyExistsError, ApiError, InvalidObjectError, UsageError
from tangram.playground.manifests import (
    MAXIMUM_PODS,
    Manifests,
    apply,
    manifests,
    read_documents,
    resource_of,
)
from tangram.playground.scenarios.reading import is_scenario, scenario
from tangram.playground.scenarios.schema import Apply, Scenario
from tangram.testing.apiserver import FakeApiServer

Plans = Sequence[Manifests | Scenario]


def load_plans(paths: Sequence[Path]) -> Plans:
    """All files. InvalidObjectError for the first object that is bad, UsageError for files of both kinds."""
    read = [(path, *read_documents(path)) for path in paths]
    kinds = {is_scenario(documents) for _, _, documents in read}
    if len(kinds) > 1:
        raise UsageError(
            "--scenario names manifests and scenarios", next_step="play them one after the other: a scenario"
            " checks that nothing but its own objects is there",
        )  # fmt: skip
    if True in kinds:
        scenarios = [scenario(path, documents) for path, _, documents in read]
        for each in scenarios:
            _rehearse(each)
        return scenarios
    files = [manifests(path, text, documents) for path, text, documents in read]
    rehearsal = FakeApiServer()
    for document in (document for each in files for document in each.documents):
        apply(rehearsal, document)
        spec = document.object.get("spec") or {}
        for field in ("replicas", "parallelism"):
            if isinstance(count := spec.get(field), int) and count > MAXIMUM_PODS:
                problem = f"the playground makes at most {MAXIMUM_PODS} pods, not {count}"
                raise InvalidObjectError(
                    problem, object_name=document.label, field=f"spec.{field}", next_step="ask for fewer"
                )
    return files


def _rehearse(played: Scenario) -> None:
    """Objects of kinds that the playground does not know are for another world to judge."""
    for step in played.steps:
        rehearsal = FakeApiServer()
        for each in step.action.objects if isinstance(step.action, Apply) else ():
            if (resource := resource_of(each)) is None:
                continue
            try:
                rehearsal.create(resource, each)
            except AlreadyExistsError:
                pass  # applied twice: the second changes the first
            except ApiError as error:
                name = f"{step.label}: {each['kind']} {each['metadata'].get('name', '')}"
                raise InvalidObjectError(error.cause, object_name=name) from None
