"""Files of manifests to play: read and checked as far as that goes without a server."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tangram.base.errors import AlreadyExistsError, ApiError, InvalidObjectError, UsageError
from tangram.kube.resources import Resource
from tangram.testing.apiserver import RESOURCES, FakeApiServer

_MAXIMUM_BYTES = 1024 * 1024
_KINDS = {(resource.api_version, resource.kind): resource for resource in RESOURCES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One object of a file; `label` names both for messages."""

    label: str
    resource: Resource
    object: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One file. `about` is the first sentence of the comment it begins with."""

    name: str
    about: str
    documents: tuple[Document, ...]

    @property
    def pods(self) -> int:
        """How many pods it makes at first: its own, and those of its Jobs and Deployments."""
        return sum(_pods(document) for document in self.documents)


def shipped_examples() -> list[Path]:
    """The examples of the source tree this runs from. UsageError for an installed package: it has none."""
    directory = Path(__file__).parents[3] / "deploy" / "examples"
    found = sorted(directory.glob("*.yaml"))
    if not found:
        raise UsageError(
            "the shipped examples are not part of this installation",
            next_step="name a file of manifests with --scenario, or run ./hack/try in the repository",
        )
    return found


def load(path: Path) -> Scenario:
    """InvalidObjectError names the file and the document (counted from 1)."""
    try:
        if path.stat().st_size > _MAXIMUM_BYTES:
            raise InvalidObjectError("larger than 1 MiB", object_name=str(path))
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or str(error)
        raise InvalidObjectError(f"cannot be read: {cause}", object_name=str(path)) from None
    documents = []
    try:
        for number, content in enumerate(yaml.safe_load_all(text), start=1):
            if content is not None:
                documents.append(_document(content, label=f"{path}, document {number}"))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        label = f"{path}, document {len(documents) + 1}"
        raise InvalidObjectError(f"is not YAML: {' '.join(str(error).split())}", object_name=label) from None
    if not documents:
        raise InvalidObjectError("has no object", object_name=str(path))
    first = text.partition("\n")[0]
    about = first.lstrip("# ").partition(". ")[0].rstrip(" .") if first.startswith("#") else ""
    return Scenario(name=path.name, about=about, documents=tuple(documents))


def apply(server: FakeApiServer, document: Document) -> None:
    """Creates the object; InvalidObjectError with the server's words if it is refused."""
    try:
        server.create(document.resource, document.object)
    except AlreadyExistsError as error:
        raise InvalidObjectError(
            error.cause, object_name=document.label, next_step="give each object a name of its own"
        ) from None
    except ApiError as error:
        raise InvalidObjectError(error.cause, object_name=document.label) from None


def load_all(paths: Sequence[Path]) -> list[Scenario]:
    """All files, or the error of the first object that is bad."""
    scenarios = [load(path) for path in paths]
    rehearsal = FakeApiServer()
    for document in (document for each in scenarios for document in each.documents):
        apply(rehearsal, document)
    return scenarios


def _document(content: Any, *, label: str) -> Document:
    if not isinstance(content, dict):
        raise InvalidObjectError("is not an object", object_name=label)
    metadata, spec = content.get("metadata"), content.get("spec", {})
    if not isinstance(spec, dict | None):
        raise InvalidObjectError("is not an object", object_name=label, field="spec")
    if not isinstance(metadata, dict):
        raise InvalidObjectError("is not an object", object_name=label, field="metadata")
    if not isinstance(metadata.get("name") or metadata.get("generateName"), str):
        raise InvalidObjectError("is missing, or not a string", object_name=label, field="metadata.name")
    api_version, kind = content.get("apiVersion"), content.get("kind")
    resource = _KINDS.get((str(api_version), str(kind)))
    if resource is None:
        known = ", ".join(f"{kind} ({version})" for version, kind in sorted(_KINDS))
        raise InvalidObjectError(
            f"{kind} of {api_version} is not known to the playground",
            object_name=label,
            next_step=f"it knows {known}; use a real cluster for anything else",
        )
    return Document(label=label, resource=resource, object=content)


def _pods(document: Document) -> int:
    spec, kind = document.object.get("spec") or {}, document.resource.kind

    def number(field: str) -> int:
        return 1 if (value := spec.get(field)) is None else int(value)

    if kind == "Job":
        return min(number("completions"), number("parallelism"))
    if kind == "Deployment":
        return number("replicas")
    return int(kind == "Pod")
