"""The command hack/image: the driver's image from deploy/Dockerfile, without a container engine.

Buildah builds the same Dockerfile as everybody else; only the base image is made here from Debian packages,
because tests must need no image registry.
"""

import argparse
import ast
import hashlib
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from clusterlib.commands import ensure_packages, exclusive, run
from clusterlib.errors import ClusterError
from clusterlib.layout import CACHE_DIR, REPOSITORY
from clusterlib.steps import step

IMAGE = "localhost/tangram:dev"
_DEPENDENCIES_IMAGE = "localhost/tangram-dependencies:dev"

_DEBIAN_PACKAGES = ("buildah", "mmdebstrap")
_SUITE = "bookworm"
# `essential` plus these; usr-is-merged keeps its alternative, and with it all of Perl, out.
_BASE_PACKAGES = ("ca-certificates", "libstdc++6", "python3", "python3-venv", "usr-is-merged")
_BASE_EXCLUDES = ("/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/doc/*")
_BASE_INCLUDES = ("/usr/share/doc/*/copyright",)

_DOCKERFILE = Path("deploy/Dockerfile")
_INPUTS = (
    _DOCKERFILE,
    Path("deploy/requirements.txt"),
    Path("deploy/requirements-build.txt"),
    Path("pyproject.toml"),
    Path("README.md"),
    Path("LICENSE"),
    Path("driver"),
)
_IMAGES_DIR = CACHE_DIR / "images"
_KEPT_ARCHIVES = 3
_PIP_SOURCES = (
    "index-url",
    "extra-index-url",
    "find-links",
    "trusted-host",
    "no-index",
    "timeout",
    "default-timeout",
)
_CA_IN_BUILD = "/run/secrets/ca.crt"


def input_files(root: Path) -> list[Path]:
    """The files the image is made of, relative to `root`, sorted. Raises ClusterError when one is missing."""
    files: list[Path] = []
    for item in _INPUTS:
        path = root / item
        if path.is_dir():
            files += (file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
        elif path.is_file():
            files.append(path)
        else:
            raise ClusterError(f"{path} is missing", next_step="run this in a complete checkout")
    return sorted(file.relative_to(root) for file in files)


def copy_inputs(root: Path, target: Path) -> Path:
    """Copy the files the image is made of to `target`, and return `target`."""
    for file in input_files(root):
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / file, target / file)
    return target


def digest(parts: Iterable[bytes]) -> str:
    """12 hex digits of SHA-256 over `parts`, each with its length, so that no two lists look the same."""
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8, "big"))
        total.update(part)
    return total.hexdigest()[:12]


def base_digest() -> str:
    settings = (_SUITE, *_BASE_PACKAGES, *_BASE_EXCLUDES, *_BASE_INCLUDES)
    return digest(setting.encode() for setting in settings)


def content_digest(root: Path) -> str:
    files = input_files(root)
    contents = (part for file in files for part in (str(file).encode(), (root / file).read_bytes()))
    return digest([base_digest().encode(), *contents])


def pip_settings(listing: str) -> dict[str, str]:
    """The output of `pip config list` -> option and value; the environment wins, as it does for pip."""
    lines = [line.partition("=") for line in listing.splitlines() if "=" in line]
    ordered = sorted(lines, key=lambda line: line[0].startswith(":env:"))
    return {name.rpartition(".")[2]: str(ast.literal_eval(value)) for name, _, value in ordered}


def pip_configuration(settings: Mapping[str, str]) -> str:
    """A pip.conf for the build: where packages come from, with the CA bundle at its place there."""
    lines = [f"{name} = {settings[name]}" for name in _PIP_SOURCES if settings.get(name)]
    if "cert" in settings:
        lines.append(f"cert = {_CA_IN_BUILD}")
    # A value of several lines goes on in indented ones.
    return "\n".join(["[global]", *(line.replace("\n", "\n    ") for line in lines)]) + "\n"


class ImageBuilder:
    """Builds from `root`, a checkout. Its buildah storage is its own: nothing else on the machine sees it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._storage = _IMAGES_DIR / "storage"

    def build(self) -> Path:
        """The archive of the present content; built unless it is there already."""
        _IMAGES_DIR.mkdir(parents=True, exist_ok=True)
        # What is hashed is what is built, even if somebody edits the checkout meanwhile.
        with exclusive(_IMAGES_DIR / ".lock"), tempfile.TemporaryDirectory() as context:
            digest_of_content = content_digest(copy_inputs(self._root, Path(context)))
            archive = _IMAGES_DIR / f"tangram-{digest_of_content}.tar"
            if archive.exists():
                archive.touch()
                return archive
            ensure_packages(_DEBIAN_PACKAGES)
            self._buildah("rm", "--all")
            base = self._ensure_base()
            with step("driver image: dependencies"):
                # Named, so that pruning keeps it.
                self._build(Path(context), base, "--target=dependencies", f"--tag={_DEPENDENCIES_IMAGE}")
            with step("driver image: code"):
                self._build(Path(context), base, f"--tag={IMAGE}")
            with step(f"driver image: {archive.name}"):
                self._push(archive)
            self._prune()
        return archive

    def _ensure_base(self) -> str:
        """The base image's name; made from Debian packages unless the storage has it."""
        name = f"localhost/tangram-base:{base_digest()}"
        if name in self._buildah("images", "--format={{.Name}}:{{.Tag}}").splitlines():
            return name
        tarball = _IMAGES_DIR / f"base-{base_digest()}.tar"
        if not tarball.exists():
            with step(f"driver image: base from Debian {_SUITE}"):
                unfinished = tarball.with_suffix(".new.tar")
                options = ["--quiet", "--variant=essential", f"--include={','.join(_BASE_PACKAGES)}"]
                options += [f"--dpkgopt=path-exclude={pattern}" for pattern in _BASE_EXCLUDES]
                options += [f"--dpkgopt=path-include={pattern}" for pattern in _BASE_INCLUDES]
                options += ["--hook-directory=/usr/share/mmdebstrap/hooks/merged-usr"]
                run(["mmdebstrap", *options, _SUITE, unfinished])
                unfinished.rename(tarball)
        with step("driver image: import base"):
            container = self._buildah("from", "scratch").strip()
            self._buildah("add", "--quiet", container, tarball, "/")
            self._buildah("commit", "--quiet", "--rm", "--timestamp=0", container, name)
        return name

    def _build(self, context: Path, base: str, *options: str) -> None:
        version = tomllib.loads((context / "pyproject.toml").read_text())["project"]["version"]
        settings = pip_settings(run([sys.executable, "-m", "pip", "config", "list"]))
        with tempfile.NamedTemporaryFile("w", suffix=".conf") as configuration:
            configuration.write(pip_configuration(settings))
            configuration.flush()
            pip = [f"--secret=id=pip.conf,src={configuration.name}"]
            if "cert" in settings:
                pip.append(f"--secret=id=ca.crt,src={settings['cert']}")
            folders = (Path(link) for link in settings.get("find-links", "").split())
            pip += [f"--volume={folder}:{folder}:ro" for folder in folders if folder.is_dir()]
            arguments = [f"--build-arg=BASE_IMAGE={base}", f"--build-arg=VERSION={version}"]
            isolation = ["--isolation=chroot", "--network=host", "--pull-never"]
            layers = ["--quiet", "--layers", "--timestamp=0", f"--file={context / _DOCKERFILE}"]
            self._buildah("build", *isolation, *layers, *pip, *arguments, *options, context)

    def _push(self, archive: Path) -> None:
        unfinished = archive.with_suffix(".new")
        unfinished.unlink(missing_ok=True)
        compression = ("--compression-format=gzip", "--compression-level=1")
        self._buildah("push", "--quiet", *compression, IMAGE, f"oci-archive:{unfinished}:{IMAGE}")
        unfinished.rename(archive)

    def _prune(self) -> None:
        """Keep the newest archives and the layers of the newest image."""
        self._buildah("rmi", "--prune")
        archives = sorted(_IMAGES_DIR.glob("tangram-*.tar"), key=lambda file: file.stat().st_mtime)
        for archive in archives[:-_KEPT_ARCHIVES]:
            archive.unlink()

    def _buildah(self, command: str, *words: str | Path) -> str:
        storage = [f"--root={self._storage}", f"--runroot={self._storage}.run", "--storage-driver=overlay"]
        return run(["buildah", *storage, command, *words])


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="hack/image",
        description="Build the driver's image (deploy/Dockerfile) and print the path of its OCI archive. "
        "Needs root, Debian 12 and its package mirror, but no container engine and no image registry. "
        "Does nothing when the archive of the present content is there.",
        epilog=f'The image is called {IMAGE}. For a cluster: hack/cluster load-image "$(hack/image)"',
    )
    parser.parse_args()
    try:
        print(ImageBuilder(REPOSITORY).build())
    except ClusterError as error:
        print(f"hack/image: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
