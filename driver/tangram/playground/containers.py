"""A container as a process of this machine, with the environment its claims' CDI files give it.

Images are not pulled: `command` runs with this machine's programs. A GPU's device nodes are empty files in a
folder of the container; where its command says `/dev/nvidia…`, that folder is meant, and its output says
`/dev/nvidia…` again. So an ordinary user sees what a container would see, and no more.
"""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tangram.base.errors import InvalidObjectError

_DEVICE_PREFIX = "/dev/nvidia"


class Container:
    """One process, in a session of its own so that all it starts ends with it."""

    def __init__(
        self,
        spec: Mapping[str, Any],
        *,
        directory: Path,
        object_name: str,
        edits: Iterable[Mapping[str, Any]],
    ) -> None:
        """InvalidObjectError for what cannot run without an image. `edits` are CDI `containerEdits`."""
        self.name: str = spec["name"]
        self.image: str = spec.get("image", "")
        self._directory = directory
        self._log = directory / "log"
        (directory / "dev").mkdir(parents=True)
        variables = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(directory)}
        for entry in spec.get("env") or ():
            if "valueFrom" in entry:
                raise InvalidObjectError(
                    "valueFrom is not known to the playground",
                    object_name=object_name,
                    field=f"containers[{self.name}].env[{entry.get('name')}]",
                )
            variables[entry["name"]] = self._inward(str(entry.get("value", "")))
        for edit in edits:
            variables.update(variable.split("=", 1) for variable in edit.get("env") or ())
            for node in edit.get("deviceNodes") or ():
                if node["path"].startswith(_DEVICE_PREFIX):
                    file = Path(self._inward(node["path"]))
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.touch()
        if not spec.get("command"):
            raise InvalidObjectError(
                "the playground pulls no images: only a container with a command can run",
                object_name=object_name,
                field=f"containers[{self.name}].command",
            )
        words = [self._inward(str(word)) for word in [*spec["command"], *(spec.get("args") or ())]]
        with self._log.open("wb") as log:
            try:
                self._process = subprocess.Popen(
                    words,
                    cwd=directory,
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                raise InvalidObjectError(
                    f"cannot be started: {error}",
                    object_name=object_name,
                    field=f"containers[{self.name}].command",
                ) from error

    def exit_code(self) -> int | None:
        """None while it runs; 128 + signal where one ended it."""
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def terminate(self) -> None:
        """Asks it to end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it and all it started, and waits for its end."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def output(self, *, start: int = 0) -> tuple[bytes, int]:
        """What it has written from byte `start` of its log on, and where that ends."""
        with self._log.open("rb") as log:
            log.seek(start)
            data = log.read()
        return data.replace(f"{self._directory}/dev/".encode(), b"/dev/"), start + len(data)

    def _inward(self, text: str) -> str:
        return text.replace(_DEVICE_PREFIX, f"{self._directory}{_DEVICE_PREFIX}")

    def _signal(self, number: signal.Signals) -> None:
        # The group may outlive its first process: what that one left running is in it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


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
