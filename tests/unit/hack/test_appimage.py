"""What the driver's image is made of, and what decides that it must be built anew."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterlib.appimage import (
    content_digest,
    copy_inputs,
    digest,
    input_files,
    pip_configuration,
    pip_settings,
)
from clusterlib.errors import ClusterError

_FILES = (
    "deploy/Dockerfile",
    "deploy/requirements.txt",
    "deploy/requirements-build.txt",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "driver/tangram/__init__.py",
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in _FILES:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"content of {name}")
    return tmp_path


def test_only_what_is_installed_counts(checkout: Path) -> None:
    before = content_digest(checkout)
    for name in ("docs/page.md", "tests/test_x.py", "driver/tangram/__pycache__/x.pyc"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text("changed")
    assert content_digest(checkout) == before


@pytest.mark.parametrize("name", _FILES)
def test_every_input_counts(checkout: Path, name: str) -> None:
    before = content_digest(checkout)
    (checkout / name).write_text("changed")
    assert content_digest(checkout) != before


def test_a_renamed_module_counts(checkout: Path) -> None:
    before = content_digest(checkout)
    (checkout / "driver/tangram/__init__.py").rename(checkout / "driver/tangram/other.py")
    assert content_digest(checkout) != before


def test_the_copy_is_what_was_hashed(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (checkout / "driver/tangram/__pycache__").mkdir()
    (checkout / "driver/tangram/__pycache__/x.pyc").write_bytes(b"")
    copy = copy_inputs(checkout, tmp_path_factory.mktemp("context"))
    assert [str(file) for file in input_files(copy)] == sorted(_FILES)
    assert content_digest(copy) == content_digest(checkout)


def test_an_incomplete_checkout_is_refused(checkout: Path) -> None:
    (checkout / "LICENSE").unlink()
    with pytest.raises(ClusterError, match="LICENSE is missing"):
        input_files(checkout)


@given(parts=st.lists(st.binary(max_size=8), max_size=4), other=st.lists(st.binary(max_size=8), max_size=4))
def test_digest_tells_lists_apart(parts: list[bytes], other: list[bytes]) -> None:
    assert (digest(parts) == digest(other)) == (parts == other)


def test_pip_settings_prefer_the_environment() -> None:
    listing = (
        ":env:.cert='/env/ca.crt'\n:env:.find-links='/a /b'\nglobal.cert='/file/ca.crt'\nglobal.timeout='9'\n"
    )
    assert pip_settings(listing) == {"cert": "/env/ca.crt", "find-links": "/a /b", "timeout": "9"}


def test_pip_configuration_carries_sources_and_no_paths_of_this_machine() -> None:
    settings = {"cert": "/here/ca.crt", "index-url": "https://index.invalid/simple", "target": "/somewhere"}
    assert pip_configuration(settings) == (
        "[global]\nindex-url = https://index.invalid/simple\ncert = /run/secrets/ca.crt\n"
    )


def test_pip_configuration_without_settings_is_empty() -> None:
    assert pip_configuration(pip_settings("")) == "[global]\n"
