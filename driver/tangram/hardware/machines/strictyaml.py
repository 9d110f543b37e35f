"""YAML without surprises.

Scalars are text unless they are integers, `true`, `false` or null: YAML 1.1 would read `no` as false and the
PCI bus id `0000:07:00.0` as the number 420. A key that stands twice, an alias and deep nesting are refused.
"""

import re
from typing import Any, NoReturn

import yaml

MAXIMUM_DEPTH = 8


class YamlError(ValueError):
    """The text is not YAML of this kind; `line` counts from 1, 0 where unknown."""

    def __init__(self, problem: str, *, line: int = 0) -> None:
        super().__init__(problem)
        self.line = line


def load_yaml(data: bytes) -> Any:
    """The one document of a text, of dict, list, str, int, bool and None. YamlError for anything else."""
    try:
        return yaml.load(data, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = (error.problem or error.context or "not YAML")[:200]
        raise YamlError(problem, line=mark.line + 1 if mark else 0) from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8
        raise YamlError(str(error).replace("\n", " ")[:200]) from None


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - add_implicit_resolver fills this one
    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            _refuse("aliases (*name) are not allowed", event.start_mark)
        self._depth += 1
        if self._depth > MAXIMUM_DEPTH:
            _refuse(f"nested deeper than {MAXIMUM_DEPTH} levels", event.start_mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_scalar(self, node: Any) -> Any:
        value: str = super().construct_scalar(node)
        if any("\ud800" <= character <= "\udfff" for character in value):
            _refuse("an escape of half a character (a lone surrogate)", node.start_mark)
        return value

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key_node, _ in node.value:
            key = str(key_node.value)
            if key in seen:
                _refuse(f"the key {key[:64]!r} stands twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def _refuse(problem: str, mark: Any) -> NoReturn:
    raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


for _kind, _pattern, _first_characters in (
    ("null", r"^(?:~|null|)$", ["~", "n", ""]),
    ("bool", r"^(?:true|false)$", ["t", "f"]),
    ("int", r"^-?(?:0|[1-9][0-9]{0,17})$", list("-0123456789")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(_pattern), _first_characters)
