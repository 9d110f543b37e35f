"""The oracle: hack/oracle built on one version of Kubernetes' modules, and conversations with it."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from clusterlib.commands import exclusive, run
from clusterlib.errors import ClusterError
from clusterlib.layout import CACHE_DIR, REPOSITORY
from clusterlib.steps import step
from conformance.versions import Version

_SOURCES = REPOSITORY / "hack" / "oracle"
_MODULE = "k8s.io/dynamic-resource-allocation"


def ensure_oracle(version: Version) -> Path:
    """The program, built into the cache if it is not there. Raises ClusterError (no Go, no modules)."""
    sources = sorted(_SOURCES.glob("*.go"))
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.read_bytes())
    directory = CACHE_DIR / "oracle" / version.module_version
    program = directory / f"oracle-{digest.hexdigest()[:12]}"
    if program.exists():
        return program
    with exclusive(directory / ".lock"):
        if not program.exists():
            _build(version, sources, directory / "src", program)
    return program


def _build(version: Version, sources: Iterable[Path], source_dir: Path, program: Path) -> None:
    if shutil.which("go") is None:
        raise ClusterError(
            "Go is needed to build the oracle", next_step="install Go 1.26 or later and put it in PATH"
        )
    shutil.rmtree(source_dir, ignore_errors=True)
    source_dir.mkdir(parents=True)
    for source in sources:
        shutil.copy(source, source_dir)
    env = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
    (source_dir / "go.mod").write_text(
        f"module tangram.invalid/oracle\n\ngo 1.25.0\n\nrequire {_MODULE} {version.module_version}\n"
    )
    with step(f"oracle {version.module_version}: modules"):
        hint = "check that the Go module proxy can be reached"
        run(["go", "mod", "tidy"], cwd=source_dir, env=env, next_step=hint)
    with step(f"oracle {version.module_version}: build"):
        tags = ",".join(version.build_tags)
        built = program.with_suffix(".new")
        run(["go", "build", "-trimpath", "-tags", tags, "-o", built, "."], cwd=source_dir, env=env)
        built.rename(program)
    for old in program.parent.glob("oracle-*"):
        if old != program:
            old.unlink()


class Oracle:
    """One running oracle. Use it as a context manager; `ask` from one thread."""

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """One question, one answer (type `problem` of the program). Raises ClusterError when it died."""
        return next(self.ask_all([question]))

    def ask_all(self, questions: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """The answers in the order of the questions."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        for question in questions:
            try:
                stdin.write(msgspec.json.encode(question) + b"\n")
                stdin.flush()
                line = stdout.readline()
            except BrokenPipeError:
                line = b""
            if not line:
                raise ClusterError(
                    f"the oracle ended with {self._process.wait()}", next_step="see its last words above"
                )
            yield msgspec.json.decode(line)
