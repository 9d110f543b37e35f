"""Files of manifests: good ones are read, bad ones refused by file and document."""

from pathlib import Path

import pytest

from tangram.base.errors import InvalidObjectError
from tangram.playground.manifests import Manifests, shipped_examples
from tangram.playground.plans import load_plans

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n"
JOB = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\n"
TEMPLATE = "template: {spec: {restartPolicy: Never, containers: [{name: a, image: b}]}}"


def manifests(*files: Path) -> list[Manifests]:
    plans = load_plans(files)
    return [plan for plan in plans if isinstance(plan, Manifests)]


def test_the_shipped_examples_are_good() -> None:
    scenarios = manifests(*shipped_examples())
    numbers = [*(f"0{number}" for number in range(1, 10)), "12", "13"]
    assert [scenario.name[:2] for scenario in scenarios] == numbers
    assert [scenario.pods for scenario in scenarios] == [1, 1, 1, 2, 1, 2, 2, 1, 1, 2, 4]
    assert scenarios[2].about == "Four GPUs of which each is linked to each other by NVLink"


def test_nulls_are_as_absent(tmp_path: Path) -> None:
    file = tmp_path / "nulls.yaml"
    containers = "containers: [{name: a, image: b}], restartPolicy: null"
    text = f"{POD}spec: {{{containers}}}\n---\n---\n{JOB}spec: {{completions: null, {TEMPLATE}}}"
    file.write_text(text)
    (scenario,) = manifests(file)
    assert scenario.pods == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no object"),
        ("a: [", "document 1: is not YAML"),
        ("a: \x00", "is not YAML"),
        ("a: 1\nb: 2\na: 3", "document 1: is not YAML: the key 'a' stands twice"),
        (f"{POD}---\n- 1", "document 2: is not an object"),
        (f"{POD}---\nkind: Pod", "document 2: metadata: is not an object"),
        (f"{POD}spec: []", "document 1: spec: is not an object"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: 7}", "document 1: metadata.name"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: A_b}", "document 1: "),
        ("apiVersion: [v1]\nkind: {}\nmetadata: {name: s}", "document 1: {} of ['v1'] is not known"),
        (f"{POD}---\n{POD}", 'document 2: pods "p" already exists'),
        ("apiVersion: v1\nkind: Secret\nmetadata: {name: s}", "document 1: Secret of v1 is not known"),
        (f"{POD}spec: {{containers: 7}}", "spec.containers"),
        (f"{POD}spec: {{containers: [{{name: ../x}}]}}", "spec.containers[0].name: Invalid value"),
        (
            f"{POD}spec: {{containers: [{{name: a, image: b}}, {{name: a, image: b}}]}}",
            'Duplicate value: "a"',
        ),
        (f"{POD}spec: {{containers: [{{name: a, command: sh}}]}}", "spec.containers[0].command"),
        (f"{POD}spec: {{resourceClaims: [{{}}]}}", "spec.resourceClaims[0]: Invalid value"),
        (JOB, "document 1: "),
        (f"{JOB}spec: {{completions: many, {TEMPLATE}}}", "spec.completions"),
        (f"{JOB}spec: {{parallelism: 1001, completions: 9999, {TEMPLATE}}}", "document 1"),
    ],
)
def test_a_bad_document_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(InvalidObjectError) as caught:
        load_plans([file])
    assert str(caught.value).startswith(str(file))
    assert message in str(caught.value)
    assert caught.value.next_step
    assert caught.value.exit_code == 2


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidObjectError, match=r"none\.yaml: cannot be read") as caught:
        load_plans([tmp_path / "none.yaml"])
    assert caught.value.next_step
