"""What holds for every expression."""

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.unit.cel.printer import unparse
from tests.unit.cel.support import DEVICE, OWN
from tests.unit.cel.trees import LOOSE_TREES, TREES

from tangram.base.errors import CelCompileError, CelRuntimeError
from tangram.cel import CelDevice, Program
from tangram.cel.ast import Node
from tangram.cel.parser import parse
from tangram.cel.program import BUDGET
from tangram.model.semver import SemVer

WORDS = (
    "( ) [ ] { } . , : ? ! && || == != < <= > >= + - * / % in has all exists map filter true false null if"
    " device driver attributes capacity x size quantity semver dyn int string optional of cel bind"
    """ 0 1 -1 1u 1.5 1e3 0x1 .5 "a" 'b' b"c" r'd' "gpu.resource.admin" \\ " ' // @"""
)


def patient(examples: int) -> settings:
    """So many examples, however slow the machine is: these tests do not time anything."""
    return settings(max_examples=examples, suppress_health_check=[HealthCheck.too_slow])


FRAGMENTS = st.lists(st.sampled_from([*WORDS.split(), "\n"]), max_size=25).map(" ".join)


@given(st.one_of(st.text(max_size=60), FRAGMENTS, st.text(alphabet="'\"\\bru0x1e.+-[](){}? \n", max_size=40)))
@example("\ud800")
@example("'\ud800' == ''")
@example("b'\ud800' == b''")
@patient(200)
def test_any_text_compiles_or_is_refused_with_its_place(text: str) -> None:
    error = _compile_error(text)
    if error is not None:
        assert error.cause
        assert error.line >= 1
        assert 1 <= error.column <= len(text) + 1
        assert str(error)


@given(TREES)
@patient(200)
def test_printing_and_parsing_a_tree_gives_the_same_tree(tree: Node) -> None:
    text = unparse(tree)
    again = parse(text)
    assert again == tree
    assert repr(again) == repr(tree)  # equality alone does not tell 1 from true
    assert unparse(again) == text


@given(st.one_of(LOOSE_TREES, TREES))
@patient(400)
def test_evaluation_gives_bool_or_an_error_and_always_the_same(tree: Node) -> None:
    try:
        program = Program(unparse(tree))
    except CelCompileError:
        return
    first = _result(program, DEVICE)
    assert isinstance(first, bool | str)
    assert _result(program, DEVICE) == first


def _with(device: CelDevice, attribute: str, value: object) -> CelDevice:
    own = {**device.attributes[OWN], attribute: value}
    return CelDevice(
        driver=device.driver, attributes={**device.attributes, OWN: own}, capacity=device.capacity
    )


@given(st.one_of(LOOSE_TREES, TREES))
@patient(200)
def test_the_result_depends_on_the_references_alone(tree: Node) -> None:
    try:
        program = Program(unparse(tree))
    except CelCompileError:
        return
    kept = {(part.domain, part.id) for part in program.references() if part.field == "attributes"}
    if any(domain is None or id_ is None for domain, id_ in kept):
        return
    attributes = {
        domain: {id_: value for id_, value in values.items() if (domain, id_) in kept}
        for domain, values in DEVICE.attributes.items()
    }
    bare = CelDevice(driver=DEVICE.driver, attributes=attributes, capacity=DEVICE.capacity)
    assert _result(program, bare) == _result(program, DEVICE)


_VARIANTS = [
    _with(DEVICE, attribute, value)
    for attribute in ("index", "healthy", "type", "pre", "nope")
    for value in (0, 1, True, False, "1", SemVer("1.2.3-rc.1+build6"), SemVer("1.2.3-rc.1"))
]


@given(st.one_of(LOOSE_TREES, TREES))
@patient(100)
def test_remembered_answers_are_those_of_an_evaluation(tree: Node) -> None:
    try:
        program = Program(unparse(tree))
    except CelCompileError:
        return
    for device in (DEVICE, *_VARIANTS, DEVICE):
        _, answer = program.answer(device)
        result = str(answer.result) if isinstance(answer.result, CelRuntimeError) else answer.result
        assert result == _result(program, device)
        assert 0 <= answer.cost <= BUDGET


def _result(program: Program, device: CelDevice) -> bool | str:
    try:
        return program.evaluate(device)
    except CelRuntimeError as error:
        return str(error)


def _compile_error(text: str) -> CelCompileError | None:
    try:
        Program(text)
    except CelCompileError as error:
        return error
    return None
