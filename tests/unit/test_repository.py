"""The repository keeps its own promises: sizes, names, versions, lock files, and documents that are true."""

import os
import re
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

import tangram
from clusterlib.binaries import KUBERNETES_VERSION
from devtools.lock import DEVELOPMENT, LOCKS, RUN_TIME, recorded_digest, requirements_digest, stale_locks
from devtools.testing import OTHER_VERSIONS

ROOT = Path(__file__).resolve().parents[2]
MAXIMUM_LINES = 500

TOP_LEVEL = {
    *(".ci", ".git", ".gitignore", "pyproject.toml"),
    *("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md"),
    *("deploy", "docs", "driver", "hack", "protos", "tests"),
}

# Hosts a link may lead to. Everything else would be somebody's own machine or a page that may vanish.
PUBLIC_HOSTS = {
    *("github.com", "go.dev", "proxy.golang.org", "pypi.org", "docs.python.org", "www.apache.org"),
    *("kubernetes.io", "docs.nvidia.com", "opencontainers.org", "opentelemetry.io", "json-schema.org"),
    *("keepachangelog.com", "semver.org", "kubernetes.default.svc"),
}
_LOCAL_HOST = re.compile(
    r"[\w-]+|\[::1\]|127\..*|10\..*|192\.0\.2\..*|([\w-]+\.)+(example(\.(com|org|net))?|invalid|test)|\{.*"
)

# A document of this project; longer paths are other projects'.
_DOCUMENT = re.compile(r"(?<![\w/.-])(?:docs/)?[\w-]+\.md\b")

# Folders of a developer's machine; files of a project must not know them. GKE's folder for drivers is none.
_PRIVATE_PATH = re.compile(r"(?<![\w.~}-])/(?!home/kubernetes/)(home|root|Users|work|workspace)/\w")


def _ignored() -> list[str]:
    lines = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    return [line.strip("/") for line in lines if line and not line.startswith("#")]


def project_files() -> list[Path]:
    """Every file that belongs to the project: what git tracks, or would."""
    ignored = _ignored()
    found = []
    for directory, names, files in os.walk(ROOT):
        keep = lambda name: name != ".git" and not any(fnmatch(name, pattern) for pattern in ignored)  # noqa: E731
        names[:] = sorted(filter(keep, names))
        found += [Path(directory, name) for name in sorted(filter(keep, files))]
    return found


FILES = project_files()
TEXTS = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in FILES
    if path.name != "LICENSE" and path.suffix != ".xz"
}
DOCUMENTS = {name: text for name, text in TEXTS.items() if name.endswith(".md")}
EXAMPLES = sorted(name for name in TEXTS if name.startswith("deploy/examples/"))


def _generated(name: str) -> bool:
    return "/kubeletplugin/proto/" in name and "_pb2" in name


def test_no_module_is_too_long() -> None:
    too_long = {
        name: lines
        for name, text in TEXTS.items()
        if name.endswith((".py", ".sh")) or name.startswith(("hack/", ".ci/"))
        if not name.endswith(".txt") and not _generated(name)
        if (lines := text.count("\n")) >= MAXIMUM_LINES
    }
    assert not too_long, "split these modules by idea"


def test_top_level_holds_what_it_should() -> None:
    ignored = _ignored()
    present = {
        entry.name for entry in ROOT.iterdir() if not any(fnmatch(entry.name, pattern) for pattern in ignored)
    }
    assert present - TOP_LEVEL == set()


def test_files_know_no_private_machine() -> None:
    offenders = {
        name: found
        for name, text in TEXTS.items()
        if (found := [match[0] for match in _PRIVATE_PATH.finditer(text)])
    }
    assert not offenders


TEXTS_WITH_URLS = {
    "hack/conformance/celtexts.py",
    "tests/unit/cel/themes.txt",
    "tests/unit/cel/recorded/themes.json",
    "tests/unit/cel/recorded/work.json",
}
"""These hold URLs for a parser to parse, not links."""


def test_links_lead_to_public_places() -> None:
    offenders = {
        name: hosts
        for name, text in TEXTS.items()
        if (
            hosts := {
                host
                for host in re.findall(r"https?://([^/\s\"'`)>:]+)", text)
                if host not in PUBLIC_HOSTS and not _LOCAL_HOST.fullmatch(host)
            }
        )
        if name != "tests/unit/test_repository.py" and name not in TEXTS_WITH_URLS
    }
    assert not offenders


def test_versions_agree() -> None:
    project = tomllib.loads(TEXTS["pyproject.toml"])["project"]
    chart = yaml.safe_load(TEXTS["deploy/chart/Chart.yaml"])
    assert project["version"] == tangram.__version__ == chart["version"] == chart["appVersion"]
    assert f"## [{project['version']}]" in TEXTS["CHANGELOG.md"]


def test_the_tested_kubernetes_is_one_and_the_same() -> None:
    assert f"Kubernetes {KUBERNETES_VERSION} is tested" in TEXTS["README.md"]
    assert f"`./hack/test --matrix` also runs {' and '.join(OTHER_VERSIONS)}" in TEXTS["README.md"]


def test_lock_files_are_made_from_the_present_requirements() -> None:
    assert stale_locks(tomllib.loads(TEXTS["pyproject.toml"])) == []


def test_a_changed_requirement_makes_the_locks_stale() -> None:
    project: dict[str, Any] = tomllib.loads(TEXTS["pyproject.toml"])
    project["project"]["dependencies"].append("left-pad>=1")
    project["build-system"]["requires"].append("left-pad>=1")
    assert stale_locks(project) == list(LOCKS)
    assert recorded_digest(DEVELOPMENT) != requirements_digest(DEVELOPMENT, project)


def _pins(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9._-]+)==([^ \\;]+)", path.read_text(encoding="utf-8"), re.MULTILINE))


def test_the_image_runs_what_the_tests_ran() -> None:
    tested = _pins(DEVELOPMENT.path)
    assert _pins(RUN_TIME.path).items() <= tested.items()


def test_every_locked_package_has_a_hash() -> None:
    for lock in LOCKS:
        text = lock.path.read_text(encoding="utf-8")
        for block in re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]:
            assert "--hash=sha256:" in block


def _commands(text: str) -> list[str]:
    """The command lines of a document: shell blocks, and inline code that begins with ./"""
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    inline = re.findall(r"`(\./[^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    return [line for line in [*lines, *inline] if line and not line.startswith("#")]


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_commands_of_a_document_exist(name: str) -> None:
    for command in _commands(DOCUMENTS[name]):
        for program in re.findall(r"(?<![\w.])\./(\S+?)(?=[\s)\"]|$)", command):
            assert os.access(ROOT / program, os.X_OK), command
        for file in re.findall(r"(?:-f|--values|--filename) ((?:deploy|docs|hack)/\S+)", command):
            assert (ROOT / file).exists(), command


@pytest.mark.parametrize("program", ["hack/test", "hack/cluster", "hack/lock", "hack/render", "hack/protos"])
def test_documented_options_are_options(program: str) -> None:
    shown = subprocess.run([ROOT / program, "--help"], capture_output=True, text=True, check=True).stdout
    for name, text in DOCUMENTS.items():
        for command in _commands(text):
            if not command.startswith(f"./{program} "):
                continue
            words = command.split("#")[0].split("|")[0].split(" -- ")[0].split()[1:]
            subcommand = [word for word in words[:1] if program == "hack/cluster"]
            detail = shown
            if subcommand:
                detail = subprocess.run(
                    [ROOT / program, *subcommand, "--help"], capture_output=True, text=True, check=True
                ).stdout
            for option in (word.split("=")[0] for word in words if word.startswith("--")):
                assert option in detail, f"{name}: {command}"


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_links_of_a_document_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", DOCUMENTS[name]):
        if not re.match(r"https?:", target):
            assert (ROOT / name).parent.joinpath(target).exists(), target


def test_documents_that_files_name_exist() -> None:
    names = {Path(name).name for name in DOCUMENTS}
    missing = {
        name: unknown
        for name, text in TEXTS.items()
        if (unknown := {Path(found).name for found in _DOCUMENT.findall(text)} - names)
        if not name.startswith(("tests/", "pyproject"))
    }
    assert not missing


def test_every_document_is_linked() -> None:
    linked = {
        (ROOT / name).parent.joinpath(target).resolve().relative_to(ROOT).as_posix()
        for name, text in DOCUMENTS.items()
        for target in re.findall(r"\]\(([^)#\s:]+)", text)
    }
    assert {name for name in DOCUMENTS if name.startswith("docs/")} <= linked


def test_every_example_is_indexed_and_tested() -> None:
    indexed = re.findall(r"\]\(\.\./(deploy/examples/\S+?)\)", TEXTS["docs/examples.md"])
    assert indexed == EXAMPLES
    played = "\n".join(text for name, text in TEXTS.items() if name.startswith("tests/scenarios/"))
    for example in EXAMPLES:
        assert f"applyFile: ../../{example}\n" in played, example
