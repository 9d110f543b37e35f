"""Kubernetes, containerd and etcd, built from their Go modules, once per version, into the cache."""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from clusterlib import gomod
from clusterlib.commands import exclusive, run
from clusterlib.errors import ClusterError
from clusterlib.layout import CACHE_DIR
from clusterlib.steps import Step, step

KUBERNETES_VERSION = "1.36.3"
CONTAINERD_VERSION = "2.2.9"
ETCD_VERSION = "3.6.16"

_ETCD_MAIN = """\
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """Programs of one Go module at one version."""

    title: str
    module: str
    version: str
    directory: Path
    programs: Sequence[str]
    package_of_program: str
    """Import path of a program's main package, with {program} in it."""
    main_source: str | None = None
    """Our own main package where the module has none; then `programs` has one name."""
    flags: Sequence[str] = ()

    @property
    def bin_dir(self) -> Path:
        return self.directory / "bin"

    def missing(self) -> list[str]:
        return [program for program in self.programs if not (self.bin_dir / program).exists()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """The folders that hold the programs of one cluster version."""

    kubernetes: Path
    containerd: Path
    etcd: Path


def kubernetes_build(version: str) -> Build:
    """Raises ClusterError unless `version` is like 1.36.3."""
    if re.fullmatch(r"1\.\d+\.\d+", version) is None:
        raise ClusterError(
            f"{version!r} is no Kubernetes version", next_step="give one like --version 1.36.3", exit_code=2
        )
    # Without the stamp the server calls itself v0.0.0 and clients complain.
    stamp = "k8s.io/component-base/version"
    variables = {
        "gitVersion": f"v{version}",
        "gitMajor": "1",
        "gitMinor": version.split(".")[1],
        "gitCommit": "unknown",
        "gitTreeState": "clean",
    }
    stamps = " ".join(f"-X {stamp}.{name}={value}" for name, value in variables.items())
    return Build(
        title=f"Kubernetes {version}",
        module="k8s.io/kubernetes",
        version=f"v{version}",
        directory=CACHE_DIR / "k8s" / version,
        programs=("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet"),
        package_of_program="k8s.io/kubernetes/cmd/{program}",
        flags=("-ldflags", f"-s -w {stamps}"),
    )


def containerd_build() -> Build:
    return Build(
        title=f"containerd {CONTAINERD_VERSION}",
        module="github.com/containerd/containerd/v2",
        version=f"v{CONTAINERD_VERSION}",
        directory=CACHE_DIR / "tools" / f"containerd-{CONTAINERD_VERSION}",
        programs=("containerd", "containerd-shim-runc-v2", "ctr"),
        package_of_program="github.com/containerd/containerd/v2/cmd/{program}",
        flags=("-tags", "no_btrfs no_devmapper no_zfs", "-ldflags", "-s -w"),
    )


def etcd_build() -> Build:
    return Build(
        title=f"etcd {ETCD_VERSION}",
        module="go.etcd.io/etcd/server/v3",
        version=f"v{ETCD_VERSION}",
        directory=CACHE_DIR / "tools" / f"etcd-{ETCD_VERSION}",
        programs=("etcd",),
        package_of_program=".",
        main_source=_ETCD_MAIN,
        flags=("-ldflags", "-s -w"),
    )


def ensure_binaries(version: str) -> Binaries:
    """Build what the cache lacks, one after the other: each build keeps all cores busy."""
    for build in (etcd_build(), containerd_build(), kubernetes_build(version)):
        _ensure(build)
    return binaries_of(version)


def ensure_kubectl(version: str) -> Path:
    """Builds the kubectl of a version if the cache lacks it; its path. Clusters use the one in .venv."""
    build = replace(kubernetes_build(version), title=f"kubectl {version}", programs=("kubectl",))
    _ensure(build)
    return build.bin_dir / "kubectl"


def binaries_of(version: str) -> Binaries:
    """Where `ensure_binaries` puts them."""
    return Binaries(
        kubernetes=kubernetes_build(version).bin_dir,
        containerd=containerd_build().bin_dir,
        etcd=etcd_build().bin_dir,
    )


def _ensure(build: Build) -> None:
    if build.missing():
        with exclusive(build.directory / ".lock"):
            if build.missing():
                _build(build)


def _build(build: Build) -> None:
    if shutil.which("go") is None:
        raise ClusterError(
            "Go is needed to build Kubernetes", next_step="install Go 1.26 or later and put it in PATH"
        )
    source_dir = build.directory / "src"
    with step(f"{build.title}: modules"):
        prepare_source(build, source_dir)
    output_dir = build.directory / "bin.new"
    output_dir.mkdir(exist_ok=True)
    packages = [build.package_of_program.format(program=program) for program in build.programs]
    # go names a program after its package's folder; our own main package has no name of its own.
    output = output_dir / build.programs[0] if build.main_source else output_dir
    with step(f"{build.title}: build") as progress:
        _compile(
            ["go", "build", "-v", "-trimpath", *build.flags, "-o", f"{output}", *packages],
            source_dir,
            progress,
        )
    build.bin_dir.mkdir(exist_ok=True)
    for program in build.programs:
        (output_dir / program).rename(build.bin_dir / program)
    output_dir.rmdir()


def prepare_source(build: Build, source_dir: Path) -> None:
    """Write the main module of `build` (go.mod, go.sum) into `source_dir`."""
    source_dir.mkdir(parents=True, exist_ok=True)
    for stale in ("go.mod", "go.sum"):
        (source_dir / stale).unlink(missing_ok=True)
    hint = "check the version and that the Go module proxy can be reached"
    downloaded = msgspec.json.decode(
        run(
            ["go", "mod", "download", "-json", f"{build.module}@{build.version}"],
            cwd=source_dir,
            next_step=hint,
        ),
        type=dict[str, object],
    )
    upstream = msgspec.json.decode(
        run(["go", "mod", "edit", "-json", f"{downloaded['GoMod']}"], cwd=source_dir), type=gomod.UpstreamMod
    )
    tools = (
        []
        if build.main_source
        else [build.package_of_program.format(program=name) for name in build.programs]
    )
    (source_dir / "go.mod").write_text(
        gomod.main_module(path=build.module, version=build.version, upstream=upstream, tools=tools)
    )
    if build.main_source:
        (source_dir / "main.go").write_text(build.main_source)
    run(["go", "mod", "tidy"], cwd=source_dir, env=_go_env(), next_step=hint)


def _compile(argv: Sequence[str], source_dir: Path, progress: Step) -> None:
    """`go build -v` prints each package as it is done with it."""
    output: list[str] = []
    with subprocess.Popen(
        argv, cwd=source_dir, env=_go_env(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            output.append(line)
            progress.note(f"{len(output)} packages")
    if process.returncode != 0:
        raise ClusterError(
            f"{' '.join(argv)} failed:\n{''.join(output[-30:])}", next_step="read the output above"
        )
    progress.detail = f"{len(output)} packages"


def _go_env() -> dict[str, str]:
    return {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
