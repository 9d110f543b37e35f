"""A container as a process of this machine, with the environment its claims' CDI files give it.

Images are not pulled: `command` runs with this machine's programs. A GPU's device nodes are empty files in a
folder of the container; where its command says `/dev/nvidia…`, that folder is meant, and its output says
`/dev/nvidia…` again. So an ordinary user sees what a container would see, and no more.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tangram.base.errors import InvalidObjectError
from tangram.playground.guard import Group, Guard
from tangram.playground.objects import Object

_DEVICE_PREFIX = "/dev/nvidia"
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
_KEYED_FIELD = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


class Container:
    """One container of a pod, over its restarts."""

    def __init__(
        self,
        spec: Mapping[str, Any],
        *,
        path: str,
        pod: Object,
        directory: Path,
        edits: Iterable[Mapping[str, Any]],
    ) -> None:
        """InvalidObjectError for what cannot run here, by `path`. `edits` are CDI `containerEdits`."""
        self.name: str = spec["name"]
        self.image: str = spec.get("image", "")
        self.starts = 0
        self._path = path
        self._pod = f"pod {pod['metadata']['namespace']}/{pod['metadata']['name']}"
        self._directory = directory
        self._log = directory / "log"
        self._group: Group | None = None
        (directory / "dev").mkdir(parents=True)
        given: dict[str, str] = {}
        for entry in spec.get("env") or ():
            given[entry["name"]] = self._value(entry, pod, given)
        self._variables = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(directory)}
        self._variables |= {name: self._inward(value) for name, value in given.items()}
        for edit in edits:
            self._variables.update(variable.split("=", 1) for variable in edit.get("env") or ())
            for node in edit.get("deviceNodes") or ():
                if node["path"].startswith(_DEVICE_PREFIX):
                    file = Path(self._inward(node["path"]))
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.touch()
        if not spec.get("command"):
            raise self._refusal("the playground pulls no images: only a container with a command can run")
        words = [*spec["command"], *(spec.get("args") or ())]
        self._words = [self._inward(_expand(str(word), self._variables)) for word in words]
        if not shutil.which(self._words[0], path=self._variables["PATH"]):
            raise self._refusal(f"there is no program {words[0]!r} on this machine")

    def start(self, guard: Guard) -> None:
        """Starts it, anew if it has ended; what the run before has written is then its previous output."""
        if self._group is not None:
            self._group.kill()
            self._log.replace(self._log.with_suffix(".previous"))
        with self._log.open("wb") as log:
            self._group = guard.start(
                self._words, environment=self._variables, output=log, directory=self._directory
            )
        self.starts += 1

    def exit_code(self) -> int | None:
        """None while it runs or has not begun; 128 + signal where one ended it."""
        return None if self._group is None else self._group.exit_code()

    def terminate(self) -> None:
        """Asks it to end."""
        if self._group is not None:
            self._group.terminate()

    def kill(self) -> None:
        """Ends it and all it started, and waits for its end."""
        if self._group is not None:
            self._group.kill()

    def output(self, *, start: int = 0, previous: bool = False) -> tuple[bytes, int]:
        """What it has written from byte `start` of its log on, and where that ends."""
        file = self._log.with_suffix(".previous") if previous else self._log
        if not file.exists():
            return b"", start
        with file.open("rb") as log:
            log.seek(start)
            data = log.read()
        return data.replace(f"{self._directory}/dev/".encode(), b"/dev/"), start + len(data)

    def _value(self, entry: Mapping[str, Any], pod: Object, before: Mapping[str, str]) -> str:
        source = entry.get("valueFrom")
        if not source:
            return _expand(str(entry.get("value") or ""), before)
        field = f"env[{entry['name']}].valueFrom"
        path = (source.get("fieldRef") or {}).get("fieldPath")
        if not isinstance(path, str):
            raise self._refusal(f"the playground knows only fieldRef, not {', '.join(source)}", field=field)
        value = _field(pod, path)
        if value is None:
            raise self._refusal(f"the playground does not know the field {path}", field=f"{field}.fieldRef")
        return value

    def _refusal(self, problem: str, *, field: str = "command") -> InvalidObjectError:
        return InvalidObjectError(problem, object_name=self._pod, field=f"{self._path}.{field}")

    def _inward(self, text: str) -> str:
        return text.replace(_DEVICE_PREFIX, f"{self._directory}{_DEVICE_PREFIX}")


def cdi_edits(cdi_root: Path, device_ids: Iterable[str]) -> list[Mapping[str, Any]]:
    """The edits that CDI devices stand for, in order; those of a file as a whole once.

    A device is `<kind>=<claim uid>-<device>`, its file `<cdi root>/*_<claim uid>.json`.
    """
    wanted = list(dict.fromkeys(device_ids))
    edits: list[Mapping[str, Any]] = []
    for file in sorted(cdi_root.glob("*.json")):
        spec = json.loads(file.read_bytes())
        chosen = [d for d in spec["devices"] if f"{spec['kind']}={d['name']}" in wanted]
        if chosen:
            edits += [spec.get("containerEdits") or {}, *(d.get("containerEdits") or {} for d in chosen)]
            wanted = [each for each in wanted if each not in {f"{spec['kind']}={d['name']}" for d in chosen}]
    if wanted:
        raise InvalidObjectError("no CDI file has this device", object_name=f"CDI device {wanted[0]}")
    return edits


def _expand(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` by its value, `$$` by `$`; an unknown name stays as it is (`core/v1` EnvVar, Container)."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[1] is None else variables.get(match[1], match[0])

    return _REFERENCE.sub(value, text)


def _field(pod: Object, path: str) -> str | None:
    """A field as `core/v1` ObjectFieldSelector has it; None for one that is not known."""
    metadata, spec = pod["metadata"], pod["spec"]
    if match := _KEYED_FIELD.fullmatch(path):
        return str((metadata.get(match[1]) or {}).get(match[2], ""))
    known = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName") or "default",
        "status.hostIP": "127.0.0.1",
        "status.podIP": "127.0.0.1",
    }
    return known.get(path)
