import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def kubelet_directory() -> Iterator[Path]:
    """Short, for a Unix socket's path has at most 107 bytes (pytest's tmp_path is longer)."""
    directory = Path(tempfile.mkdtemp(prefix="k"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)
