"""The short list of where the fake API server may answer otherwise than a real one."""

from pathlib import Path

import yaml


def known_differences() -> dict[str, str]:
    """`<case> <step>` and why."""
    entries = yaml.safe_load(Path(__file__).with_name("differences.yaml").read_text())
    assert all(entry["why"] for entry in entries)
    return {entry["answer"]: entry["why"] for entry in entries}
