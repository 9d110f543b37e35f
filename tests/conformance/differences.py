"""The short list of where the fake API server may answer otherwise than a real one."""

from pathlib import Path

import yaml


def known_differences(version: str) -> dict[str, str]:
    """`<case> <step>` and why, of a version such as 1.36.3; an entry without `version` is of all."""
    entries = yaml.safe_load(Path(__file__).with_name("differences.yaml").read_text())
    assert all(entry["why"] for entry in entries)
    return {
        answer: entry["why"]
        for entry in entries
        if version.startswith(f"{entry.get('version', '1')}.")
        for answer in entry["answers"]
    }
