"""Programs as the allocator uses them: the guard of the classes, references, the cache."""

from types import MappingProxyType

import pytest
from tests.unit.cel.support import DEVICE, OWN, outcome

from conformance.themes import expand
from tangram.base.errors import CelError, CelRuntimeError
from tangram.cel import CelDevice, Environment, Program, Reference, compile_expression
from tangram.cel.program import BUDGET, Programs
from tangram.model.semver import SemVer

GUARD = expand(
    f'device.driver == "{OWN}" && has(@.allocator) && @.allocator == "scheduler" && @.type == "gpu"'
    " && @.healthy"
)


def device(driver: str = OWN, **attributes: object) -> CelDevice:
    return CelDevice(driver=driver, attributes={driver: attributes})


@pytest.mark.parametrize(
    ("looked_at", "expected"),
    [
        (device(allocator="scheduler", type="gpu", healthy=True), True),
        (device(allocator="controller", type="gpu", healthy=True), False),
        (device(allocator="scheduler", type="mig", healthy=True), False),
        (device(allocator="scheduler", type="gpu", healthy=False), False),
        (device(type="gpu"), False),
        (device(), False),
        (device("other.example.com", allocator="scheduler"), False),
        (CelDevice(driver="other.example.com"), False),
    ],
)
def test_the_guard_is_cleanly_true_or_false_for_every_device(looked_at: CelDevice, expected: bool) -> None:
    assert compile_expression(GUARD).evaluate(looked_at) is expected


def test_a_missing_attribute_is_an_error_that_says_how_to_guard_it() -> None:
    with pytest.raises(CelRuntimeError) as caught:
        compile_expression(expand("@.nope")).evaluate(DEVICE)
    part = f'device.attributes["{OWN}"].nope'
    assert str(caught.value) == f"no such key: {part}; guard it with has({part})"


def test_any_mapping_will_do_for_attributes() -> None:
    attributes = MappingProxyType({OWN: MappingProxyType({"type": "gpu"})})
    looked_at = CelDevice(driver=OWN, attributes=attributes)
    for text in (
        '@.type == "gpu"',
        "has(@.type)",
        '@.exists(k, k == "type")',
        'device.attributes.exists(d, "type" in device.attributes[d])',
        '@.?type.orValue("") == "gpu"',
    ):
        assert compile_expression(expand(text)).evaluate(looked_at)


@pytest.mark.parametrize(
    "text",
    [
        '{"b": 1, "a": 2, "c": 0}.map(k, k) == ["a", "b", "c"]',
        '{"b": 1, "a": 2, "c": 0}.transformList(k, v, v) == [2, 1, 0]',
        "{10: 1, 9: 2, -1: 0}.map(k, k) == [-1, 9, 10]",
        "{10u: 1, 9u: 2}.map(k, k) == [9u, 10u]",
        "{true: 1, false: 2}.map(k, k) == [false, true]",
        '{dyn("b"): 1, dyn(2): 2}.map(k, k) == [dyn(2), dyn("b")]',
    ],
)
def test_macros_see_the_keys_of_a_map_in_their_order(text: str) -> None:
    assert outcome(text) is True


def test_macros_see_keys_in_one_order_whatever_the_order_of_the_device() -> None:
    program = compile_expression(expand('@.map(k, k) == ["a", "b", "c"]'))
    assert program.evaluate(device(b=1, c=1, a=1))
    assert program.evaluate(device(c=1, b=1, a=1))


@pytest.mark.parametrize(
    ("expression", "parts"),
    [
        ("true", set()),
        ('device.driver == "a"', {Reference("driver")}),
        ("device.allowMultipleAllocations", {Reference("allowMultipleAllocations")}),
        ('device.attributes["d"].x == 1', {Reference("attributes", "d", "x")}),
        ('device.attributes["d"]["x"] == 1', {Reference("attributes", "d", "x")}),
        ("device.attributes.d.x == 1", {Reference("attributes", "d", "x")}),
        ('has(device.attributes["d"].x)', {Reference("attributes", "d", "x")}),
        ('device.attributes["d"].?x.orValue(1) == 1', {Reference("attributes", "d", "x")}),
        ('device.attributes["d"].x.y == 1', {Reference("attributes", "d", "x")}),
        ('device.capacity["d"].x == quantity("1")', {Reference("capacity", "d", "x")}),
        ('"x" in device.attributes["d"]', {Reference("attributes", "d")}),
        ('"d" in device.attributes', {Reference("attributes")}),
        (
            "device.attributes[device.driver].x == 1",
            {Reference("attributes"), Reference("driver")},
        ),
        (
            'device.attributes["d"][device.driver] == 1',
            {Reference("attributes", "d"), Reference("driver")},
        ),
        (
            'device.attributes["d"].x == 1 || device.attributes["d"].y == 1',
            {Reference("attributes", "d", "x"), Reference("attributes", "d", "y")},
        ),
        ("[dyn({'driver': 1})].all(device, device.driver == 1)", set()),
        ("[device.driver].all(device, device == 'a')", {Reference("driver")}),
        ('cel.bind(device, device.attributes["d"], device.x == 1)', {Reference("attributes", "d")}),
    ],
)
def test_references_are_what_the_result_depends_on(expression: str, parts: set[Reference]) -> None:
    assert compile_expression(expression).references() == parts


def test_references_read_like_the_expression() -> None:
    assert str(Reference("driver")) == "device.driver"
    assert str(Reference("attributes", "a.b")) == 'device.attributes["a.b"]'
    assert str(Reference("attributes", "a.b", "c")) == 'device.attributes["a.b"].c'
    assert str(Reference("attributes", "a.b", "c/d")) == 'device.attributes["a.b"]["c/d"]'


def test_a_shadowed_device_is_not_the_device() -> None:
    assert compile_expression("[dyn({'driver': 1})].all(device, device.driver == 1)").evaluate(DEVICE)
    assert compile_expression("cel.bind(device, {'driver': 'x'}, device.driver == 'x')").evaluate(DEVICE)
    assert compile_expression("[{'a': 1}].all(device, has(device.a))").evaluate(DEVICE)


def test_equal_texts_share_one_program() -> None:
    first = compile_expression("1 + 1 == 2")
    assert compile_expression("1 + 1 == " + "2") is first
    assert repr(first) == "Program('1 + 1 == 2')"
    assert first.text == "1 + 1 == 2"


def test_all_errors_are_of_one_family() -> None:
    for text in ("", "1", "x.matches()", "1/0 == 1"):
        with pytest.raises(CelError):
            compile_expression(text).evaluate(DEVICE)


class TestAnswers:
    def test_devices_that_are_equal_in_what_is_read_share_an_answer(self) -> None:
        program = compile_expression(expand('@.type == "gpu" && has(@.allocator)'))
        first = program.answer(device(type="gpu", uuid="a"))
        assert first[0] == program.answer(device(type="gpu", uuid="b"))[0]
        assert first[1] is program.answer(device(type="gpu", uuid="b"))[1]
        assert first[0] != program.answer(device(type="mig", uuid="a"))[0]

    @pytest.mark.parametrize(
        ("one", "other"), [(1, True), (0, False), (SemVer("1.0.0+a"), SemVer("1.0.0+b"))]
    )
    def test_values_that_python_takes_for_equal_are_told_apart(self, one: object, other: object) -> None:
        program = compile_expression(expand("@.x == 1"))
        assert program.answer(device(x=one))[0] != program.answer(device(x=other))[0]

    def test_errors_are_answers_too(self) -> None:
        _, answer = compile_expression(expand("@.nope")).answer(device())
        assert isinstance(answer.result, CelRuntimeError)

    def test_the_price_is_known_and_bounded(self) -> None:
        cheap = compile_expression("true").answer(DEVICE)[1]
        many = "[" + ", ".join(["1"] * 1600) + "]"
        deep = compile_expression("[1, 2].flatten(9223372036854775807) == [1]").answer(DEVICE)[1]
        dear = compile_expression(f"{many}.all(x, {many}.all(y, x == y))").answer(DEVICE)[1]
        assert cheap.cost < 10
        assert dear.cost == deep.cost == BUDGET

    def test_memory_is_bounded(self) -> None:
        program = compile_expression(expand("@.index >= 0"))
        assert all(program.answer(device(index=i))[1].result is True for i in range(5000))
        assert len(program._answers) <= 1024


@pytest.mark.parametrize(
    ("text", "cost"),
    [
        ('cel.bind(s, ["ab"].map(a, a + a)[0], cel.bind(t, s + "a", cel.bind(u, s + "a", t == u)))', 25),
        ("cel.bind(x, 1, cel.bind(s, x, cel.bind(x, 2, s == 1 && x == 2)))", 5),
        (
            (
                "cel.bind(s, [1, 2].map(a, a + 1), [5, 6].all(b, cel.bind(t, [b].map(c, c + s[0]),"
                " [7].exists(d, t[0] == b + 2 && d == 7 && s == [2, 3]))))"
            ),
            120,
        ),
        (
            (
                "[1, 2].all(a, cel.bind(s, [a].map(b, b * 2)[0],"
                " [10].all(c, [20].all(d, s == a * 2 && d == 20 && c == 10))))"
            ),
            95,
        ),
    ],
)
def test_a_binding_is_evaluated_where_it_is_first_used(text: str, cost: int) -> None:
    """Its macros must not disturb the variables of the macros inside which that is."""
    _, answer = compile_expression(text).answer(DEVICE)
    assert (answer.result, answer.cost) == (True, cost)


def test_programs_used_last_are_kept_as_long_as_there_is_room() -> None:
    made: list[str] = []

    def make(text: str, environment: Environment | None) -> Program:
        made.append(text)
        return compile_expression(text, environment)

    programs = Programs(make, nodes=3 * (8 + compile_expression("1 == 1").size))
    for text in ("1 == 1", "2 == 2", "3 == 3", "1 == 1", "4 == 4", "1 == 1", "3 == 3", "4 == 4"):
        assert isinstance(programs.get(text, None), Program)
    assert made == ["1 == 1", "2 == 2", "3 == 3", "4 == 4"]
    programs.get("2 == 2", None)  # makes room by forgetting the one that was not used for longest
    programs.get("3 == 3", None)
    programs.get("1 == 1", None)
    assert made[4:] == ["2 == 2", "1 == 1"]


def test_a_program_larger_than_all_the_room_is_kept_alone() -> None:
    made: list[str] = []

    def make(text: str, environment: Environment | None) -> Program:
        made.append(text)
        return compile_expression(text, environment)

    programs = Programs(make, nodes=1)
    for text in ("1 == 1", "1 == 1", "2 == 2", "2 == 2", "1 == 1"):
        programs.get(text, None)
    assert made == ["1 == 1", "2 == 2", "1 == 1"]
