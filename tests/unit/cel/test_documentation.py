"""docs/selectors.md: every example holds for the device of the page."""

import re
from pathlib import Path

import pytest
import yaml

from conformance.selectors import cel_device
from tangram.cel import Environment, validate_expression

PAGE = (Path(__file__).parents[3] / "docs/selectors.md").read_text(encoding="utf-8")
EXAMPLES = [
    line for block in re.findall(r"```cel\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines() if line
]
_DEVICE = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0])
LIBRARIES = re.findall(r"^\| (?:language|macros|optionals|texts|patterns|lists|sets).*$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.parametrize("version", ["k8s-1.34", "k8s-1.37"])
def test_every_example_holds(example: str, version: str) -> None:
    program = validate_expression(example, Environment.of(version))
    assert program.evaluate(cel_device(_DEVICE, _DEVICE["driver"]))


def test_the_functions_of_the_page_are_there() -> None:
    known = {name.rpartition(".")[2] for name in Environment.of("k8s-1.37").functions} | {"sortBy", "has"}
    known |= {"all", "exists", "exists_one", "map", "filter", "bind", "optMap", "optFlatMap"}
    known |= {"transformList", "transformMap", "transformMapEntry", "field", "[?key]"}
    named = {
        name.strip(".?()").rpartition(".")[2] for row in LIBRARIES for name in re.findall(r"`([^`]+)`", row)
    }
    assert len(EXAMPLES) > 20
    assert named - known - {"3"} == set()
