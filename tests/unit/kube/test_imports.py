"""What the processes of a cluster load: memory and start of every node depend on it."""

import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = Path(__file__).parents[3] / "driver"
HEAVY = {"kubernetes", "pydantic", "requests", "yaml", "pynvml"}
"""Only for kubeconfigs, for settings files and machine descriptions, and for real GPUs."""


@pytest.mark.parametrize("module", ["tangram.node.app", "tangram.controller.app"])
def test_processes_of_a_cluster_load_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    shown = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(DRIVER)},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {name.partition(".")[0] for name in shown.stdout.split()}
    assert not loaded & HEAVY
    assert "tangram.testing" not in shown.stdout.split()
