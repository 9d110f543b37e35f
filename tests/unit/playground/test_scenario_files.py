"""Scenario files are read strictly: each mistake is named by file, step and field."""

import contextlib
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tangram.base.errors import InvalidObjectError, UsageError
from tangram.playground.manifests import Manifests
from tangram.playground.plans import load_plans
from tangram.playground.scenarios.describing import action_text
from tangram.playground.scenarios.reading import load_scenario, scenario
from tangram.playground.scenarios.schema import Apply, Expect, Scenario

SHIPPED = sorted((Path(__file__).parents[2] / "scenarios").glob("*.yaml"))
HEAD = "apiVersion: tangram/v1alpha1\nkind: Scenario\nabout: A test\nmachines: [t4x4]\nsteps:\n"


def test_the_shipped_ones_are_good() -> None:
    plans = load_plans(SHIPPED)
    assert len(plans) >= 12
    assert all(isinstance(plan, Scenario) for plan in plans)
    assert all(
        action_text(step.action) for plan in plans if isinstance(plan, Scenario) for step in plan.steps
    )


def read(tmp_path: Path, text: str) -> Scenario:
    file = tmp_path / "s.yaml"
    file.write_text(text)
    return load_scenario(file)


def test_what_is_written_is_what_is_played(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n---\n")
    found = read(tmp_path, HEAD + "  - applyFile: m.yaml\n  - expect: [{held: 1}]\n    withinS: 7\n")
    assert (found.name, found.machines) == ("s.yaml", ("t4-x4",))
    first, second = (step.action for step in found.steps)
    assert isinstance(first, Apply)
    assert first.objects[0]["metadata"] == {"name": "p"}
    assert isinstance(second, Expect)
    assert second.within_s == 7
    assert found.steps[1].label == "s.yaml, steps[1]"


POD = "{apiVersion: v1, kind: Pod, metadata: {name: p}}"


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("{}", "steps[0]: does 0 things; a step is one of apply, applyFile"),
        ("{apply: [], expect: []}", "steps[0]: does 2 things: apply, expect"),
        ("{aply: []}", "steps[0]: unknown field 'aply'; did you mean 'apply'?"),
        ("{remember: [p], withinS: 3}", "steps[0].withinS: belongs to expect"),
        ("{expect: [{held: 1}], withinS: 0}", "steps[0].withinS: Expected `int` >= 1"),
        ("{apply: [{kind: Pod}]}", "steps[0].apply[0]: metadata: is not an object"),
        ("{apply: [{kind: Pod, metadata: {name: p}}]}", "steps[0].apply[0]: apiVersion: is missing"),
        (
            "{apply: [{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: n}}]}",
            "steps[0].apply[0]: metadata.namespace: is not for a scenario to choose",
        ),
        ("{applyFile: none.yaml}", "none.yaml: cannot be read"),
        ("{delete: [{kind: Secret, name: s}]}", "steps[0].delete[0].kind: Invalid enum value 'Secret'"),
        ("{restart: {component: etcd}}", "steps[0].restart.component: Invalid enum value 'etcd'"),
        ("{gpus: {state: broken, node: node-1}}", "steps[0].gpus.state: Invalid enum value 'broken'"),
        ("{gpus: {state: lost}}", "steps[0].gpus: names a pod or a node"),
        ("{gpus: {state: lost, node: node-1, free: true, index: 1}}", "names GPUs in two ways"),
        ("{expect: [{phase: Running}]}", "steps[0].expect[0]: says nothing that could be checked"),
        ("{expect: [{pods: [p], fase: Running}]}", "steps[0].expect[0]: unknown field 'fase'"),
        ("{expect: [{pods: [p], phase: Runing}]}", "steps[0].expect[0].phase: Invalid enum value 'Runing'"),
        ("{expect: [{pods: [p], count: 2}]}", "steps[0].expect[0]: count is for pods by labels"),
        ("{expect: [{pods: {a: b}}]}", "steps[0].expect[0]: pods by labels need a count"),
        ("{expect: [{claim: c, claimsOf: p}]}", "steps[0].expect[0]: names its claims in two ways"),
        ("{expect: [{object: {kind: Job, name: j}}]}", "says either what the object has, or that it is gone"),
        ("{expect: [{held: -1}]}", "steps[0].expect[0].held: Expected `int` >= 0"),
        ("{expect: [{log: p}]}", "steps[0].expect[0]: Object missing required field `text`"),
    ],
)
def test_a_bad_step_is_named(tmp_path: Path, step: str, message: str) -> None:
    with pytest.raises(InvalidObjectError) as caught:
        read(tmp_path, HEAD + f"  - {step}\n")
    assert message in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD, "steps: Expected `array`, got `null`"),
        (HEAD.replace("[t4x4]", "[]") + "  - remember: [p]\n", "machines: Expected `array` of length >= 1"),
        (HEAD.replace("v1alpha1", "v2") + "  - remember: [p]\n", "apiVersion: Invalid enum value"),
        (HEAD + "  - remember: [p]\n---\n" + POD, "has 2 documents; a scenario stands alone"),
        ("kind: Scenario\n", "Object missing required field"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidObjectError) as caught:
        read(tmp_path, text)
    assert message in str(caught.value)


def test_an_unknown_machine_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no machine abacus"):
        read(tmp_path, HEAD.replace("t4x4", "abacus") + "  - remember: [p]\n")


def test_manifests_and_scenarios_are_not_mixed(tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(POD)
    (plan,) = load_plans([file])
    assert isinstance(plan, Manifests)
    with pytest.raises(UsageError, match="manifests and scenarios"):
        load_plans([file, SHIPPED[0]])


def test_an_object_that_the_server_refuses_is_named_before_the_start(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(f"{HEAD}  - apply: [{POD[:-1]}, spec: {{containers: 7}}}}]\n")
    with pytest.raises(InvalidObjectError, match=r"s\.yaml, steps\[0\]: Pod p: .*spec\.containers"):
        load_plans([file])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
WORDS = [
    "apply", "applyFile", "delete", "restart", "kill", "gpus", "remember", "expect", "withinS", "pods",
    "claim", "event", "log", "object", "held", "published", "kind", "name", "component", "state", "node",
    "metadata",
]  # fmt: skip


@given(st.lists(st.dictionaries(st.sampled_from(WORDS), JSON, max_size=3), max_size=3))
def test_any_step_is_read_or_refused_by_name(steps: object) -> None:
    content = {**yaml.safe_load(HEAD), "steps": steps}
    with contextlib.suppress(InvalidObjectError):  # and nothing else
        scenario(Path("s.yaml"), [content])
