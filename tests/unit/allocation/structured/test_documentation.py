"""The example of docs/allocation-engine.md runs as it stands."""

import doctest
from pathlib import Path

PAGE = Path(__file__).resolve().parents[4] / "docs" / "allocation-engine.md"


def test_the_example_of_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    example = text.split("```pycon\n")[1].split("```")[0]
    test = doctest.DocTestParser().get_doctest(example, {}, PAGE.name, str(PAGE), 0)
    assert doctest.DocTestRunner().run(test).failed == 0
    assert len(test.examples) <= 12
