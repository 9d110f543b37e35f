"""Files of manifests to play: read and checked as far as that goes without a server."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tangram import DRIVER_NAME
from tangram.base.errors import AlreadyExistsError, ApiError, InvalidObjectError, UsageError
from tangram.kube.resources import Resource
from tangram.testing.apiserver import RESOURCES, FakeApiServer

MAXIMUM_PODS = 1000
"""of one Job or Deployment"""
_MAXIMUM_BYTES = 1024 * 1024
_FORM = "each object needs apiVersion, kind and metadata.name, as in deploy/examples/01-one-gpu.yaml"
_MIG_CLASS = f"mig.{DRIVER_NAME}".encode()
_KINDS = {(resource.api_version, resource.kind): resource for resource in RESOURCES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One object of a file; `label` names both for messages."""

    label: str
    resource: Resource
    object: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifests:
    """One file. `about` is the first sentence of the comment it begins with."""

    name: str
    about: str
    documents: tuple[Document, ...]

    @property
    def pods(self) -> int:
        """How many pods it makes at first: its own, and those of its Jobs and Deployments."""
        return sum(_pods(document) for document in self.documents)


def shipped_examples() -> list[Path]:
    """The examples of the source tree this runs from that the default machines can show: MIG mode of their
    GPUs can be switched by a reset alone. UsageError for an installed package: it has none."""
    directory = Path(__file__).parents[3] / "deploy" / "examples"
    found = [file for file in sorted(directory.glob("*.yaml")) if _MIG_CLASS not in file.read_bytes()]
    if not found:
        raise UsageError(
            "the shipped examples are not part of this installation",
            next_step="name a file of manifests with --scenario, or run ./hack/try in the repository",
        )
    return found


def read_documents(path: Path) -> tuple[str, list[Any]]:
    """The text of a YAML file and what its documents hold, without empty ones; not yet looked at further.

    InvalidObjectError names the file and the document (counted from 1).
    """
    try:
        if path.stat().st_size > _MAXIMUM_BYTES:
            raise InvalidObjectError(
                "larger than 1 MiB", object_name=str(path), next_step="give the objects in several files"
            )
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or str(error)
        raise InvalidObjectError(
            f"cannot be read: {cause}",
            object_name=str(path),
            next_step="name a file of manifests, such as deploy/examples/01-one-gpu.yaml",
        ) from None
    documents = []
    try:
        for content in yaml.load_all(text, Loader=_Loader):
            documents.append(content)  # noqa: PERF402 - counts the good ones before a bad one
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        label = f"{path}, document {len(documents) + 1}"
        problem = f"is not YAML: {' '.join(str(error).split())}"
        raise InvalidObjectError(problem, object_name=label, next_step="mend the YAML of the file") from None
    if all(content is None for content in documents):
        raise InvalidObjectError("has no object", object_name=str(path), next_step=_FORM)
    return text, documents


def manifests(path: Path, text: str, documents: Sequence[Any]) -> Manifests:
    """What `read_documents` read, as manifests. InvalidObjectError names the file and the document."""
    found = []
    for number, content in enumerate(documents, start=1):
        if content is not None:
            label = f"{path}, document {number}"
            check_form(content, label=label)
            found.append(Document(label=label, resource=_known(content, label=label), object=content))
    first = text.partition("\n")[0]
    about = first.lstrip("# ").partition(". ")[0].rstrip(" .") if first.startswith("#") else ""
    return Manifests(name=path.name, about=about, documents=tuple(found))


def apply(server: FakeApiServer, document: Document) -> None:
    """Creates the object; InvalidObjectError with the server's words if it is refused."""
    try:
        server.create(document.resource, document.object)
    except AlreadyExistsError as error:
        raise InvalidObjectError(
            error.cause, object_name=document.label, next_step="give each object a name of its own"
        ) from None
    except ApiError as error:
        raise InvalidObjectError(
            error.cause,
            object_name=document.label,
            next_step="correct it; a real API server refuses it likewise",
        ) from None


def check_form(content: Any, *, label: str) -> None:
    """InvalidObjectError for what is no object of any kind."""
    if not isinstance(content, dict):
        raise InvalidObjectError("is not an object", object_name=label, next_step=_FORM)
    metadata, spec = content.get("metadata"), content.get("spec", {})
    if not isinstance(spec, dict | None):
        raise InvalidObjectError("is not an object", object_name=label, field="spec", next_step=_FORM)
    if not isinstance(metadata, dict):
        raise InvalidObjectError("is not an object", object_name=label, field="metadata", next_step=_FORM)
    if not isinstance(metadata.get("name") or metadata.get("generateName"), str):
        raise InvalidObjectError(
            "is missing, or not a string", object_name=label, field="metadata.name", next_step=_FORM
        )


def resource_of(content: dict[str, Any]) -> Resource | None:
    """None for a kind that the playground does not know."""
    return _KINDS.get((str(content.get("apiVersion")), str(content.get("kind"))))


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice: one of the two would be lost without a word."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                problem = f"the key {key.value[:64]!r} stands twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return node


def _known(content: dict[str, Any], *, label: str) -> Resource:
    resource = resource_of(content)
    if resource is None:
        known = ", ".join(f"{kind} ({version})" for version, kind in sorted(_KINDS))
        raise InvalidObjectError(
            f"{content.get('kind')} of {content.get('apiVersion')} is not known to the playground",
            object_name=label,
            next_step=f"it knows {known}; use a real cluster for anything else",
        )
    return resource


def _pods(document: Document) -> int:
    spec, kind = document.object.get("spec") or {}, document.resource.kind

    def number(field: str) -> int:
        return 1 if (value := spec.get(field)) is None else int(value)

    if kind == "Job":
        return min(number("completions"), number("parallelism"), MAXIMUM_PODS)
    if kind == "Deployment":
        return min(number("replicas"), MAXIMUM_PODS)
    return int(kind == "Pod")
