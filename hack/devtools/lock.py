"""Lock files: every package that is installed, by version and hash, from the ranges in pyproject.toml.

Each lock records the digest of the sections it was made from, so that a stale one is found offline.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROJECT = ROOT / "pyproject.toml"
_NOTE = "# Made by ./hack/lock from pyproject.toml; do not edit."
_MARK = "# requirements-digest: sha256:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """One lock file.

    `group` adds a dependency group; `constraint` is the lock whose versions this one must share;
    `build_system` locks what builds the wheel instead of what it needs to run.
    """

    path: Path
    group: str = ""
    build_system: bool = False
    constraint: Path | None = None


DEVELOPMENT = Lock(path=ROOT / "hack/requirements-dev.txt", group="dev")
RUN_TIME = Lock(path=ROOT / "deploy/requirements.txt", constraint=DEVELOPMENT.path)
BUILD = Lock(path=ROOT / "deploy/requirements-build.txt", build_system=True)
LOCKS = (DEVELOPMENT, RUN_TIME, BUILD)


def requirements_digest(lock: Lock, project: dict[str, Any]) -> str:
    """SHA-256, in hex, of the sections of pyproject.toml that decide what the lock holds."""
    sections: dict[str, Any] = {
        "requires-python": project["project"]["requires-python"],
        "dependencies": sorted(project["project"]["dependencies"]),
        "group": sorted(project["dependency-groups"][lock.group]) if lock.group else [],
    }
    if lock.build_system:
        sections = {"build-system": sorted(project["build-system"]["requires"])}
    return hashlib.sha256(json.dumps(sections, sort_keys=True).encode()).hexdigest()


def recorded_digest(lock: Lock) -> str:
    """The digest a lock file says it was made from; empty if it says none."""
    if not lock.path.exists():
        return ""
    for line in lock.path.read_text(encoding="utf-8").splitlines():
        if line.startswith(_MARK):
            return line.removeprefix(_MARK)
    return ""


def stale_locks(project: dict[str, Any]) -> list[Lock]:
    """The locks that were made from other requirements than those in pyproject.toml."""
    return [lock for lock in LOCKS if recorded_digest(lock) != requirements_digest(lock, project)]


def _compile(lock: Lock, project: dict[str, Any], *, upgrade: bool) -> str:
    """Resolves again; versions already in the lock are kept unless `upgrade`."""
    source = "-" if lock.build_system else PROJECT.name
    requirements = "\n".join(project["build-system"]["requires"]) if lock.build_system else None
    command = [f"{sysconfig.get_path('scripts')}/uv", "pip", "compile", source]
    command += ["--universal", "--generate-hashes", "--no-header", "--quiet"]
    if lock.group:
        command += ["--group", lock.group]
    if lock.constraint:
        command += ["--constraint", str(lock.constraint.relative_to(ROOT))]
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch, lock.path.name)
        if not upgrade and lock.path.exists():
            target.write_text(lock.path.read_text(encoding="utf-8"), encoding="utf-8")
        subprocess.run(
            [*command, "--output-file", target], input=requirements, text=True, cwd=ROOT, check=True
        )
        return target.read_text(encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="hack/lock",
        description="Makes hack/requirements-dev.txt and deploy/requirements*.txt from pyproject.toml.",
    )
    parser.add_argument("--check", action="store_true", help="only say whether they are current (offline)")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that are allowed")
    arguments = parser.parse_args()
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))
    if arguments.check:
        stale = [str(lock.path.relative_to(ROOT)) for lock in stale_locks(project)]
        if stale:
            print(
                f"not made from the present pyproject.toml: {', '.join(stale)}; run ./hack/lock",
                file=sys.stderr,
            )
        return 1 if stale else 0
    for lock in LOCKS:
        pins = _compile(lock, project, upgrade=arguments.upgrade)
        mark = _MARK + requirements_digest(lock, project)
        lock.path.write_text(f"{_NOTE}\n{mark}\n{pins}", encoding="utf-8")
        print(lock.path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
