"""The go.mod from which a published Go module's own commands are built. Pure."""

import re
from collections.abc import Sequence

import msgspec

MODULE_NAME = "tangram.invalid/build"


class Requirement(msgspec.Struct, frozen=True, rename="pascal"):
    path: str
    version: str = ""


class UpstreamMod(msgspec.Struct, frozen=True, rename="pascal"):
    """What we read of `go mod edit -json` (https://go.dev/ref/mod#go-mod-file)."""

    go: str
    require: list[Requirement] | None = None


def main_module(*, path: str, version: str, upstream: UpstreamMod, tools: Sequence[str]) -> str:
    """A main module that requires `path` at `version` and holds its commands `tools` (import paths).

    Kubernetes requires its own staging modules at v0.0.0 and replaces them by folders of its repository; that
    holds for nobody else. Beside each release v1.Y.Z every staging module is published as v0.Y.Z.
    """
    parts = [f"module {MODULE_NAME}", f"go {upstream.go}", f"require {path} {version}"]
    staging = sorted(item.path for item in upstream.require or () if item.version == "v0.0.0")
    if staging:
        staged = staging_version(version)
        parts.append("\n".join(["replace (", *(f"\t{name} => {name} {staged}" for name in staging), ")"]))
    if tools:
        parts.append("\n".join(["tool (", *(f"\t{tool}" for tool in tools), ")"]))
    return "\n\n".join(parts) + "\n"


def staging_version(version: str) -> str:
    """v1.36.3 -> v0.36.3. Raises ValueError for anything that is no release of Kubernetes 1."""
    match = re.fullmatch(r"v1\.(\d+\.\d+)", version)
    if match is None:
        raise ValueError(f"{version!r} is no release of Kubernetes 1.x")
    return f"v0.{match[1]}"
