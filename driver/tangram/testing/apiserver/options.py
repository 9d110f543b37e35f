"""What the query (and, of a deletion, the body) of a request asks for besides the object."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tangram.testing.apiserver.answers import bad_request, invalid_kind
from tangram.testing.apiserver.problems import Problem, invalid, not_supported, required

FieldValidation = Literal["Strict", "Warn", "Ignore"]
Propagation = Literal["Background", "Foreground", "Orphan"]

_META = "meta.k8s.io"
_VALIDATIONS: tuple[FieldValidation, ...] = ("Ignore", "Strict", "Warn")
_PROPAGATIONS: tuple[Propagation, ...] = ("Foreground", "Background", "Orphan")
_MATCHES = ("Exact", "NotOlderThan")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Of a create, update or patch. `warn` is told what a client should know besides success."""

    manager: str = "unknown"
    force: bool = False
    dry_run: bool = False
    validation: FieldValidation = "Warn"
    warn: Callable[[str], None] = lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOptions:
    """Of a deletion; preconditions left empty are none."""

    uid: str = ""
    resource_version: str = ""
    grace_s: int | None = None
    propagation: Propagation = "Background"
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions:
    """Of a list or watch. `version` is None where none was named."""

    version: int | None
    limit: int
    token: str
    initial_events: bool
    bookmarks: bool


def write_options(
    query: Mapping[str, str], *, kind: str, user_agent: str, warn: Callable[[str], None]
) -> WriteOptions:
    """`kind` of the request's options: CreateOptions, UpdateOptions, PatchOptions, or ApplyOptions of a
    PATCH that applies."""
    problems = [*_dry_run_problems(query)]
    validation, applies = query.get("fieldValidation") or "Warn", kind == "ApplyOptions"
    if validation not in _VALIDATIONS:
        problems.append(not_supported("fieldValidation", validation, ["", *_VALIDATIONS]))
    if applies and not query.get("fieldManager"):
        problems.append(required("fieldManager", "is required for apply patch"))
    if kind == "PatchOptions" and "force" in query:
        problems.append(Problem("Forbidden", "force", "may not be specified for non-apply patch"))
    if problems:
        raise invalid_kind("PatchOptions" if applies else kind, "", problems, group=_META)
    return WriteOptions(
        manager=query.get("fieldManager") or user_agent.partition("/")[0] or "unknown",
        force=query.get("force") == "true",
        dry_run="dryRun" in query,
        validation=next(each for each in _VALIDATIONS if each == validation),
        warn=warn,
    )


def delete_options(query: Mapping[str, str], body: Mapping[str, Any]) -> DeleteOptions:
    """From both places; what the body says counts."""
    given = {**query, **body}
    grace, policy = given.get("gracePeriodSeconds"), given.get("propagationPolicy")
    problems = [*_dry_run_problems(query)]
    orphans = given.get("orphanDependents")
    if policy is not None and orphans is not None:
        why = "orphanDependents and deletionPropagation cannot be both set"
        problems.append(invalid("propagationPolicy", policy, why))
    elif policy is not None and policy not in _PROPAGATIONS:
        problems.append(not_supported("propagationPolicy", policy, [*_PROPAGATIONS, "nil"]))
    if problems:
        raise invalid_kind("DeleteOptions", "", problems, group=_META)
    if orphans is not None:
        policy = "Orphan" if orphans in {True, "true"} else "Background"
    preconditions = body.get("preconditions") or {}
    return DeleteOptions(
        uid=preconditions.get("uid") or "",
        resource_version=preconditions.get("resourceVersion") or "",
        grace_s=None if grace is None else _integer(grace),
        propagation=next((each for each in _PROPAGATIONS if each == policy), "Background"),
        dry_run="dryRun" in query or bool(body.get("dryRun")),
    )


def list_options(query: Mapping[str, str], *, watch: bool) -> ListOptions:
    """Of a list, or of a watch."""
    match, text = query.get("resourceVersionMatch") or "", query.get("resourceVersion") or ""
    initial = query.get("sendInitialEvents")
    if problems := list(_list_problems(match, text, initial=initial, watch=watch, query=query)):
        raise invalid_kind("ListOptions", "", problems, group=_META)
    if text and not text.isdigit():
        raise bad_request(f'invalid resource version: resourceVersion: Invalid value: "{text}"')
    if query.get("continue") and text and text != "0":
        raise bad_request("specifying resource version is not allowed when using continue")
    return ListOptions(
        version=int(text) if text else None,
        limit=max(0, _integer(query.get("limit") or 0)),
        token=query.get("continue") or "",
        initial_events=initial == "true",
        bookmarks=query.get("allowWatchBookmarks") in {"true", "1"},
    )


def _list_problems(
    match: str, version: str, *, initial: str | None, watch: bool, query: Mapping[str, str]
) -> list[Problem]:
    where, problems = "resourceVersionMatch", []
    if watch:
        if initial is not None and match != "NotOlderThan":
            why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
            problems.append(Problem("Forbidden", where, why))
        elif initial is None and match:
            why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
            problems.append(Problem("Forbidden", where, why))
        if initial == "true" and query.get("allowWatchBookmarks") not in {"true", "1"}:
            pass  # legal: the end of the initial events is then not told
        return problems
    if initial is not None:
        problems.append(Problem("Forbidden", "sendInitialEvents", "sendInitialEvents is forbidden for list"))
    if match and not version:
        why = "resourceVersionMatch is forbidden unless resourceVersion is provided"
        problems.append(Problem("Forbidden", where, why))
    elif match and query.get("continue"):
        problems.append(
            Problem("Forbidden", where, "resourceVersionMatch is forbidden when continue is provided")
        )
    elif match and match not in _MATCHES:
        problems.append(not_supported(where, match, ["", *_MATCHES]))
    elif match == "Exact" and version == "0":
        why = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
        problems.append(Problem("Forbidden", where, why))
    return problems


def _dry_run_problems(query: Mapping[str, str]) -> list[Problem]:
    if (value := query.get("dryRun")) in {None, "All"}:
        return []
    return [not_supported("dryRun", value, ["All"])]


def _integer(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        raise bad_request(f'strconv.ParseInt: parsing "{value}": invalid syntax') from error
