"""docs/differences.md names every point in which the default engine departs from the newest version."""

import re

from clusterlib.layout import REPOSITORY
from tangram.allocation.structured import LATEST, parse_features


def test_every_difference_of_the_default_engine_is_argued() -> None:
    text = (REPOSITORY / "docs" / "differences.md").read_text(encoding="utf-8")
    section = text.partition("### Where the default engine differs from 1.37 on purpose")[2]
    rows = re.findall(r"^\| (?!1\.37 |---)", section.partition("\n\nEverything else")[0], re.MULTILINE)
    assert len(rows) == len(parse_features("k8s-1.37").faults - LATEST.faults)
    assert not LATEST.faults
