"""Asks an API server the questions, and writes its answers in a form that does not depend on the moment."""

import asyncio
import io
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp
from tests.conformance.questions import Case, Step, path_of, replace

Answer = dict[str, Any]
"""`status` (HTTP), and one of: `object`; `events` of a watch; `reason`, `details`, `message` of a refusal;
`text` that is no JSON. Besides `warnings`, if there are any."""

_MEDIA_TYPES = {"PATCH": "application/merge-patch+json"}
_UUID = re.compile(r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_STAMPS = {"resourceVersion": "<version>", "uid": "<uid>", "continue": "<token>"}
# The times that questions name; all others are the moment of a write.
_OURS = ("2020-01-01T", "2026-01-0")
_SUFFIX = re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{5}")


class Asker:
    """One server. `compact` makes it forget its history; `uncached` notices that. `end_watch` ends a running
    watch, whose answer is being read, before its time is over."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        compact: Callable[[], Awaitable[None]],
        uncached: aiohttp.ClientSession | None = None,
        end_watch: Callable[[asyncio.Future[str]], Awaitable[None]] | None = None,
    ) -> None:
        self._session = session
        self._uncached = uncached or session
        self._compact = compact
        self._end_watch = end_watch

    async def ask(self, case: Case) -> list[Answer]:
        """The answers to the steps of a case, without what `do` does."""
        await self._session.post("/api/v1/namespaces", json={"metadata": {"name": case.name}})
        names = {"case": case.name, "name": case.name}
        session, answers = self._session, []
        for step in case.steps:
            if step.do == "compact":
                await self._compact()
                session = self._uncached
                continue
            answers.append(await self._ask(session, step, case, names))
        return answers

    async def _ask(
        self, session: aiohttp.ClientSession, step: Step, case: Case, names: dict[str, str]
    ) -> Answer:
        target, resource = path_of(replace(step.target, names), namespace=case.name)
        data = step.raw
        if step.body is not None:
            body = replace(step.body, names)
            if resource is not None and isinstance(body, dict) and step.method in {"POST", "PUT"}:
                body = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
                body = {key: value for key, value in body.items() if value != "$absent"}
            data = json.dumps(body)
        headers = {"user-agent": "conformance/1.0", "accept": "application/json", **step.headers}
        if data is not None:
            headers["content-type"] = step.type or _MEDIA_TYPES.get(step.method, "application/json")
        request = session.request(
            step.method, target, data=None if data is None else io.BytesIO(data.encode()), headers=headers
        )
        watching = "watch" in target
        async with request as response:
            reading = asyncio.ensure_future(response.text())
            if watching and self._end_watch is not None:
                await self._end_watch(reading)
            text = await reading
            status, warnings = response.status, response.headers.getall("warning", [])
        answer: Answer = {"status": status}
        if warnings:
            answer["warnings"] = warnings
        try:
            lines = [json.loads(line) for line in text.splitlines()] if watching else []
            parsed: Any = None if watching else json.loads(text)
        except ValueError:
            return {**answer, "text": text}
        if watching and (status >= 400 or (lines and "object" not in lines[0])):
            parsed, watching = lines[0], False
        if status >= 400:
            return {**answer, **refusal(parsed, names)}
        if watching:
            return {**answer, "events": _events(lines, case, names)}
        for name, path in step.save.items():
            found: Any = parsed
            for part in path.split("."):
                found = found[int(part)] if part.isdigit() else found[part]
            names[name] = str(found)
        return {**answer, "object": timeless(parsed, managed_fields=case.managed_fields)}


def refusal(status: Mapping[str, Any], names: Mapping[str, str]) -> Answer:
    """Reason, details and message of a Status; the message is for readers, nobody should compare it."""
    details = dict(status.get("details") or {})
    causes = [
        {key: cause[key] for key in ("reason", "field") if key in cause}
        for cause in details.pop("causes", [])
    ]
    if causes:  # one that is found twice counts once
        unique = {(cause.get("field", ""), cause["reason"]): cause for cause in causes}
        details["causes"] = [cause for _, cause in sorted(unique.items())]
    if "uid" in details:
        details["uid"] = "<uid>"
    if "name" in details:
        details["name"] = _SUFFIX.sub("-<suffix>", details["name"])
    message = _TIME.sub("<time>", _UUID.sub("<uid>", str(status.get("message"))))
    for version in names.values():
        if version.isdigit():
            message = message.replace(version, "<version>")
    return {"reason": status.get("reason"), "details": details, "message": message[:600]}


def _events(lines: list[dict[str, Any]], case: Case, names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Bookmarks in a row are one: how many there are is a matter of time."""
    events: list[dict[str, Any]] = []
    for line in lines:
        obj = line["object"]
        shown = (
            refusal(obj, names)
            if line["type"] == "ERROR"
            else timeless(obj, managed_fields=case.managed_fields)
        )
        event = {"type": line["type"], "object": shown}
        if event["type"] != "BOOKMARK" or not events or events[-1] != event:
            events.append(event)
    return events


def timeless(value: Any, *, managed_fields: bool) -> Any:
    """An object without what differs from run to run; without managedFields unless they are the question."""
    if isinstance(value, list):
        return [timeless(item, managed_fields=managed_fields) for item in value]
    if isinstance(value, str):
        return _text(value)
    if not isinstance(value, dict):
        return value
    shown: dict[str, Any] = {}
    for key, item in value.items():
        if key == "managedFields":
            if managed_fields:  # in the order of their times, which may be the same second or not
                entries = sorted(item, key=lambda entry: (entry["operation"], entry["manager"]))
                shown[key] = [timeless(entry, managed_fields=True) for entry in entries]
            continue
        if key in _STAMPS and isinstance(item, str) and item:
            shown[key] = _STAMPS[key]
        elif key == "name" and "generateName" in value:
            shown[key] = "<name>"
        elif key == "kubernetes.io/metadata.name":
            shown[key] = _SUFFIX.sub("-<suffix>", item)
        else:
            shown[key] = timeless(item, managed_fields=managed_fields)
    return shown


def _text(value: str) -> str:
    if _TIME.fullmatch(value) and not value.startswith(_OURS):
        return "<time>"
    return "<uid>" if _UUID.fullmatch(value) else value
