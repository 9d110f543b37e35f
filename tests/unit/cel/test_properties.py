"""What holds for every expression: arbitrary text, and generated ones that use all of the environment."""

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.unit.cel.support import DEVICE, OWN

from conformance.celgenerate import Generator
from tangram.base.errors import CelCompileError, CelRuntimeError
from tangram.cel import CelDevice, Environment, Program
from tangram.cel.program import BUDGET
from tangram.model.semver import SemVer

WORDS = (
    "( ) [ ] { } . , : ? ! && || == != < <= > >= + - * / % in has all exists map filter true false null if"
    " device driver attributes capacity x size quantity semver dyn int string optional of cel bind"
    """ 0 1 -1 1u 1.5 1e3 0x1 .5 "a" 'b' b"c" r'd' "gpu.resource.admin" \\ " ' // @ `"""
)


def patient(examples: int) -> settings:
    """So many examples, however slow the machine is: these tests do not time anything."""
    return settings(max_examples=examples, suppress_health_check=[HealthCheck.too_slow], deadline=None)


FRAGMENTS = st.lists(st.sampled_from([*WORDS.split(), "\n"]), max_size=25).map(" ".join)
ENVIRONMENTS = st.sampled_from(["k8s-1.34", "k8s-1.36", "k8s-1.37"]).map(Environment.of)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """A selector that compiles."""
    environment = draw(ENVIRONMENTS)
    generator = Generator(environment, draw(st.integers(min_value=0, max_value=10**9)))
    while True:
        try:
            return Program(generator.expression(), environment)
        except CelCompileError:
            continue


@given(
    st.one_of(st.text(max_size=60), FRAGMENTS, st.text(alphabet="'\"\\bru0x1e.+-[](){}?` \n", max_size=40)),
    ENVIRONMENTS,
)
@example("\ud800", Environment.of("k8s-1.37"))
@example("'\ud800' == ''", Environment.of("k8s-1.37"))
@example("b'\ud800' == b''", Environment.of("k8s-1.37"))
@patient(200)
def test_any_text_compiles_or_is_refused_with_its_place(text: str, environment: Environment) -> None:
    error = _compile_error(text, environment)
    if error is not None:
        assert error.cause
        assert error.line >= 1
        assert 1 <= error.column <= len(text) + 1
        assert str(error)


@given(programs())
@patient(300)
def test_evaluation_gives_bool_or_an_error_and_always_the_same(program: Program) -> None:
    first = _result(program, DEVICE)
    assert isinstance(first, bool | str)
    assert _result(program, DEVICE) == first
    assert program.estimated_cost >= 0


def _with(device: CelDevice, attribute: str, value: object) -> CelDevice:
    own = {**device.attributes[OWN], attribute: value}
    return CelDevice(
        driver=device.driver, attributes={**device.attributes, OWN: own}, capacity=device.capacity
    )


@given(programs())
@patient(200)
def test_the_result_depends_on_the_references_alone(program: Program) -> None:
    kept = {(part.domain, part.id) for part in program.references() if part.field == "attributes"}
    if any(domain is None or id_ is None for domain, id_ in kept):
        return
    attributes = {
        domain: {id_: value for id_, value in values.items() if (domain, id_) in kept}
        for domain, values in DEVICE.attributes.items()
    }
    bare = CelDevice(driver=DEVICE.driver, attributes=attributes, capacity=DEVICE.capacity)
    assert _result(program, bare) == _result(program, DEVICE)


@given(programs())
@patient(100)
def test_the_order_of_attributes_does_not_matter(program: Program) -> None:
    attributes = {
        domain: dict(reversed(list(values.items())))
        for domain, values in reversed(list(DEVICE.attributes.items()))
    }
    turned = CelDevice(driver=DEVICE.driver, attributes=attributes, capacity=DEVICE.capacity)
    assert _result(program, turned) == _result(program, DEVICE)


_VARIANTS = [
    _with(DEVICE, attribute, value)
    for attribute in ("index", "healthy", "type", "pre", "nope")
    for value in (0, 1, True, False, "1", SemVer("1.2.3-rc.1+build6"), SemVer("1.2.3-rc.1"))
]


@given(programs())
@patient(60)
def test_remembered_answers_are_those_of_an_evaluation(program: Program) -> None:
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


def _compile_error(text: str, environment: Environment) -> CelCompileError | None:
    try:
        Program(text, environment)
    except CelCompileError as error:
        return error
    return None
