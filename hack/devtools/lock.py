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

    `group` adds a dependency group; `constraint` is the lock whose versions this one must share.
    """

    path: Path
    group: str = ""
    constraint: Path | None = None


DEVELOPMENT = Lock(path=ROOT / "hack/requirements-dev.txt", group="dev")
RUN_TIME = Lock(path=ROOT / "deploy/requirements.txt", constraint=DEVELOPMENT.path)
LOCKS = (DEVELOPMENT, RUN_TIME)


def requirements_digest(lock: Lock, project: dict[str, Any]) -> str:
    """SHA-256, in hex, of the sections of pyproject.toml that decide what the lock holds."""
    sections = {
        "requires-python": project["project"]["requires-python"],
        "dependencies": sorted(project["project"]["dependencies"]),
        "group": sorted(project["dependency-groups"][lock.group]) if lock.group else [],
    }
    return hashlib.sha256(json.dumps(sections, sort_keys=True).encode()).hexdigest()


def recorded_digest(lock: Lock) -> str:
    """The digest a lock file says it was made from; empty if it says none."""
    for line in lock.path.read_text(encoding="utf-8").splitlines():
        if line.startswith(_MARK):
            return line.removeprefix(_MARK)
    return ""


def stale_locks(project: dict[str, Any]) -> list[Lock]:
    """The locks that were made from other requirements than those in pyproject.toml."""
    return [lock for lock in LOCKS if recorded_digest(lock) != requirements_digest(lock, project)]


def _compile(lock: Lock, *, upgrade: bool) -> str:
    """Resolves again; versions already in the lock are kept unless `upgrade`."""
    command = [f"{sysconfig.get_path('scripts')}/uv", "pip", "compile", PROJECT.name]
    command += ["--universal", "--generate-hashes", "--no-header", "--quiet"]
    if lock.group:
        command += ["--group", lock.group]
    if lock.constraint:
        command += ["--constraint", str(lock.constraint.relative_to(ROOT))]
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch, lock.path.name)
        if not upgrade:
            target.write_text(lock.path.read_text(encoding="utf-8"), encoding="utf-8")
        subprocess.run([*command, "--output-file", target], cwd=ROOT, check=True)
        return target.read_text(encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="hack/lock",
        description="Makes hack/requirements-dev.txt and deploy/requirements.txt from pyproject.toml.",
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
        pins = _compile(lock, upgrade=arguments.upgrade)
        mark = _MARK + requirements_digest(lock, project)
        lock.path.write_text(f"{_NOTE}\n{mark}\n{pins}", encoding="utf-8")
        print(lock.path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
