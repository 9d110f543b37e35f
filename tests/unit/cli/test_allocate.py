"""`tangram allocate`: files in, allocations and reasons out, and every kind of bad input named."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.dra_objects import (
    TWO_NODES,
    Json,
    claim,
    device,
    device_class,
    node,
    pod,
    resource_slice,
    template,
)

from tangram.cli.main import main


class _Runner:
    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._directory = directory
        self._capsys = capsys

    def __call__(self, *objects: Json, flags: tuple[str, ...] = ("-o", "json")) -> tuple[int, str, str]:
        file = self._directory / "objects.yaml"
        file.write_text(yaml.safe_dump_all(objects))
        code = main(["allocate", "-f", str(file), *flags])
        printed = self._capsys.readouterr()
        return code, printed.out, printed.err

    def claims(self, *objects: Json, flags: tuple[str, ...] = ()) -> dict[str, Json]:
        _, out, _ = self(*objects, flags=("-o", "json", *flags))
        return {claim["name"]: claim for claim in json.loads(out)["claims"]}


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> _Runner:
    return _Runner(tmp_path, capsys)


def _devices(claim: Json) -> list[tuple[str, str]]:
    results = claim["allocation"]["devices"]["results"]
    return [(result["pool"], result["device"]) for result in results]


def test_a_claim_gets_the_whole_allocation_that_would_be_written(run: _Runner) -> None:
    code, out, _ = run(*TWO_NODES, claim("c", model="B"))
    assert code == 0
    (got,) = json.loads(out)["claims"]
    node = got["node"]
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    assert got == {
        "namespace": "default",
        "name": "c",
        "node": node,
        "allocation": {
            "devices": {"results": [{"request": "r", "driver": "gpu.example", "pool": node, "device": "b"}]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
        },
        "error": None,
        "reasons": [],
    }


def test_what_earlier_claims_and_allocated_claims_have_is_held(run: _Runner) -> None:
    held = claim("held")
    held["status"] = {
        "allocation": {
            "devices": {"results": [{"request": "r", "driver": "gpu.example", "pool": "n2", "device": "b"}]}
        }
    }
    claims = run.claims(*TWO_NODES, *(claim(f"c{i}", model="B") for i in range(3)), held)
    given = [_devices(claims[name])[0] for name in ("c0", "c1")]
    assert sorted(given) == [("n1", "b"), ("n2", "c")]
    assert claims["c2"]["allocation"] is None
    assert claims["c2"]["error"] is None
    assert "held" in " ".join(claims["c2"]["reasons"])
    assert "held" not in claims


def test_claims_of_a_pod_are_placed_on_one_node_or_not_at_all(run: _Runner) -> None:
    user = pod("p", templates=("one", "two"))
    fitting = run.claims(*TWO_NODES, user, template("one"), template("two", count=2, model="B"))
    assert {claim["node"] for claim in fitting.values()} == {"n2"}
    assert sorted(fitting) == ["p-one", "p-two"]
    too_many = run.claims(*TWO_NODES, user, template("one"), template("two", count=3))
    assert [claim["allocation"] for claim in too_many.values()] == [None, None]


def test_a_pod_follows_its_allocated_claim(run: _Runner) -> None:
    first = pod("first", claims=("shared",), nodeName="n2")
    second = pod("second", claims=("shared",), templates=("one",))
    claims = run.claims(*TWO_NODES, first, second, claim("shared"), template("one"))
    assert {name: claim["node"] for name, claim in claims.items()} == {"shared": "n2", "second-one": "n2"}


def test_of_many_nodes_that_say_different_things_the_most_are_told(run: _Runner) -> None:
    objects = [device_class(), claim("c", count=2)]
    for number in range(30):
        name = f"n{number:02}"
        held = claim(f"held-{number}")
        result = {"request": "r", "driver": "gpu.example", "pool": name, "device": "a"}
        held["status"] = {"allocation": {"devices": {"results": [result]}}}
        objects += [node(name), resource_slice(name, device("a"), device("b")), held]
    objects += [node(f"m{number}") for number in range(4)]
    reasons = run.claims(*objects)["c"]["reasons"]
    line = "request r: 2 devices wanted, of 2 devices 1 can be used: 1 held by claim default/held-{}"
    assert reasons[1] == "m0, m1, m2 and 1 more node: request r: 2 devices wanted, no devices on this node"
    assert reasons[2:11] == [f"n{number:02}: {line.format(number)}" for number in range(9)]
    assert reasons[11:] == ["21 more nodes: `tangram allocate --node NAME` tells of one"]


def _dear(model: str) -> Json:
    """A claim whose selector takes a third of what one decision may, on each model."""
    some, many = (f"[{', '.join(['1'] * count)}]" for count in (120, 200))
    loops = f"{some}.all(x, {many}.all(y, x == y))"
    wants = claim("c", model=model)
    (selector,) = wants["spec"]["devices"]["requests"][0]["exactly"]["selectors"]
    selector["cel"]["expression"] = f"{loops} && {selector['cel']['expression']}"
    return wants


def test_selectors_of_a_pod_may_cost_so_much_on_all_nodes_together(run: _Runner) -> None:
    """As in the controller, whose event says the same."""
    objects = [device_class(), _dear("m0")]
    for number in range(6):
        name = f"n{number}"
        objects += [node(name), resource_slice(name, device("a", f"m{number}"))]
    got = run.claims(*objects)["c"]
    assert got["allocation"] is None
    assert got["error"] == "the selectors cost too much to evaluate on so many different devices"
    assert run.claims(*objects, flags=("--as", "scheduler"))["c"]["node"] == "n0"


def test_nodes_that_could_not_be_looked_at_are_not_said_to_have_nothing(run: _Runner) -> None:
    many = [device(f"d{number}", f"m{number}") for number in range(6)]
    objects = [device_class(), _dear("x")]
    for name in ("n1", "n2"):
        objects += [node(name), resource_slice(name, *many)]
    assert run.claims(*objects, flags=("--as", "scheduler"))["c"]["reasons"] == [
        "n1, n2: the selectors cost too much to evaluate on so many different devices"
    ]


def test_nodes_whose_slices_cannot_be_used_count_as_in_the_event_of_the_controller(run: _Runner) -> None:
    half = resource_slice("n2", device("a"), device("b"))
    half["spec"]["pool"]["resourceSliceCount"] = 2
    objects = [device_class(), node("n1"), node("n2"), resource_slice("n1", device("a")), half]
    assert run.claims(*objects, claim("c", count=2))["c"]["reasons"][0] == (
        "3 devices on 2 nodes: 2 on nodes whose slices cannot be used (1 of its 2 slices are there); "
        "1 on n1 fits, but request r needs 2"
    )


def test_an_allocation_for_nodes_that_nobody_can_tell_is_an_error_of_the_pod(run: _Runner) -> None:
    given = claim("given")
    odd = {"matchExpressions": [{"key": "zone", "operator": "Like", "values": ["x"]}]}
    given["status"] = {"allocation": {"nodeSelector": {"nodeSelectorTerms": [odd]}}}
    user = pod("p", claims=("given",), templates=("one",))
    (got,) = run.claims(*TWO_NODES, given, user, template("one")).values()
    assert got["allocation"] is None
    assert got["error"].startswith("claim default/given of the pod: its allocation's node selector: 'Like'")


def test_a_pod_is_kept_from_nodes_it_cannot_run_on(run: _Runner) -> None:
    objects = (node("n1", unschedulable=True), *TWO_NODES[1:])
    claims = run.claims(*objects, pod("p", templates=("one",)), template("one"))
    assert claims["p-one"]["node"] == "n2"
    only = run.claims(*objects, pod("p", templates=("one",)), template("one"), flags=("--node", "n1"))
    assert only["p-one"]["node"] == "n1"
    assert only["p-one"]["reasons"] == ["the pod cannot run on cordoned nodes"]


def test_loose_claims_are_one_group_on_a_named_node(run: _Runner) -> None:
    objects = (*TWO_NODES, claim("c1"), claim("c2"), claim("c3"))
    assert {c["node"] for c in run.claims(*objects, flags=("--node", "n2")).values()} == {"n2"}
    assert [c["allocation"] for c in run.claims(*objects, flags=("--node", "n1")).values()] == [None] * 3


def test_all_nodes_answer_each_by_itself(run: _Runner) -> None:
    objects = (*TWO_NODES, claim("c", count=2, model="B"))
    code, out, _ = run(*objects, flags=("-o", "json", "--all-nodes"))
    answers = {node["node"]: node["claims"] for node in json.loads(out)["nodes"]}
    assert code == 3
    assert [claim["allocation"] is not None for claims in answers.values() for claim in claims] == [
        False,
        True,
    ]
    assert answers["n2"][0]["node"] == "n2"


def test_forms_and_times(run: _Runner) -> None:
    objects = (*TWO_NODES, claim("c", model="B"), claim("d", count=9))
    _, as_json, _ = run(*objects)
    code, as_yaml, _ = run(*objects, flags=("-o", "yaml"))
    assert code == 3
    assert yaml.safe_load(as_yaml) == json.loads(as_json)
    _, table, _ = run(*objects, flags=())
    assert table.splitlines()[0].split() == ["CLAIM", "NODE", "DEVICES"]
    assert "r: b of pool n" in table
    assert "none: " in table
    timed = run.claims(*objects, flags=("--now",))
    assert timed["c"]["allocation"]["allocationTimestamp"].endswith("Z")


def test_nothing_to_do_is_said(run: _Runner) -> None:
    code, out, err = run(*TWO_NODES, {"apiVersion": "v1", "kind": "Secret"}, flags=())
    assert (code, out) == (0, "no claim waits for an allocation\n")
    assert "1 Secret" in err


def test_lines_are_answered_one_by_one_and_bad_ones_with_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = json.dumps({"apiVersion": "v1", "kind": "List", "items": [*TWO_NODES, claim("c", model="B")]})
    lines = [good, "{", "", '{"apiVersion": "v1", "kind": "List", "items": [{}]}', good]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
    assert main(["allocate", "--jsonl", "-o", "json", "--node", "n2"]) == 0
    first, second, third, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert _devices(first["claims"][0]) == [("n2", "b")]
    assert first == last
    assert second["error"].startswith("line 2: is not JSON")
    assert third["error"].startswith("line 4, items[0]: ")


def test_who_reads_the_answers_may_leave(tmp_path: Path) -> None:
    line = json.dumps({"apiVersion": "v1", "kind": "List", "items": [*TWO_NODES, claim("c", count=9)]})
    file = tmp_path / "problems.jsonl"
    file.write_text(f"{line}\n" * 300)
    words = [sys.executable, "-m", "tangram", "allocate", "--jsonl", "-f", str(file)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b'{"claims"')
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_without_an_output_nothing_is_printed(tmp_path: Path) -> None:
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all([*TWO_NODES, claim("c")]))
    command = f"exec {sys.executable} -m tangram allocate -f {file} >&-"
    finished = subprocess.run(["sh", "-c", command], capture_output=True, check=False)
    assert (finished.returncode, finished.stderr) == (0, b"")


def test_the_guard_of_a_class_holds_for_whom_it_is_made(run: _Runner) -> None:
    driver = "gpu.resource.admin"
    device = {"name": "g", "attributes": {"allocator": {"string": "controller"}}}
    guarded = device_class(driver=driver)
    guarded["spec"]["selectors"].append(
        {"cel": {"expression": f"device.attributes['{driver}'].allocator == 'scheduler'"}}
    )
    objects = (guarded, resource_slice("n1", device, driver=driver), claim("c"))
    placed = {
        flags: run.claims(*objects, flags=flags)["c"]["allocation"] is not None
        for flags in ((), ("--as", "scheduler"), ("--features", "k8s-1.36"))
    }
    assert placed == {(): True, ("--as", "scheduler"): False, ("--features", "k8s-1.36"): False}


def test_an_unknown_class_is_an_error_not_a_misfit(run: _Runner) -> None:
    claims = run.claims(*TWO_NODES, claim("c", class_name="absent"))
    assert "absent" in claims["c"]["error"]
    assert claims["c"]["allocation"] is None


def _consuming(amount: str) -> Json:
    result = {"request": "r", "driver": "gpu.example", "pool": "n1", "device": "a", "shareID": "s"}
    results = [{**result, "consumedCapacity": {"m": amount}}]
    return {**claim("held"), "status": {"allocation": {"devices": {"results": results}}}}


_BOTH = pod("p", claims=("c",))
_BOTH["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = "t"
_TWICE = pod("p")
_TWICE["spec"]["resourceClaims"] = [
    {"name": name, "resourceClaimTemplateName": "t"} for name in ("a", "b", "b")
]
_OLD = {"apiVersion": "resource.k8s.io/v1beta1", "kind": "ResourceClaim", "metadata": {"name": "x"}}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (_OLD, "document 6: ResourceClaim: apiVersion: is resource.k8s.io/v1beta1, which is not read"),
        ({**claim("c"), "metadata": {}}, "document 6: ResourceClaim: metadata.name: is missing"),
        (node("n1"), "document 6: Node n1: is there twice: in "),
        (
            pod("p", claims=("gone",)),
            "Pod default/p: spec.resourceClaims[0]: names ResourceClaim default/gone",
        ),
        (pod("p", templates=("gone",)), "names ResourceClaimTemplate default/gone"),
        (pod("p", claims=("",)), "spec.resourceClaims[0]: names neither a claim nor a template"),
        (
            resource_slice("n9", device("a"), {"name": "b", "capacity": {"m": {"value": "lots"}}}),
            "document 6: ResourceSlice slice-gpu.example-n9: spec.devices[1].capacity[m]: 'lots' is not",
        ),
        (
            resource_slice("n9", {"name": "b", "attributes": {"v": {"version": "v1"}}}),
            "document 6: ResourceSlice slice-gpu.example-n9: spec.devices[0].attributes[v]: 'v1' is not",
        ),
        (
            resource_slice("n9", {"name": "b", "attributes": {"v": {"int": 2**63}}}),
            "document 6: ResourceSlice slice-gpu.example-n9: spec.devices[0].attributes[...].int: Expected",
        ),
        (
            _consuming("some"),
            "ResourceClaim default/held: status.allocation.devices.results.consumedCapacity[m]: 'some' is",
        ),
        (_BOTH, "Pod default/p: spec.resourceClaims[0]: names both a claim and a template"),
        (_TWICE, "Pod default/p: spec.resourceClaims[2].name: is there twice: in spec.resourceClaims[1] too"),
        ({**claim("c"), "spec": {"devices": {"requests": 3}}}, "ResourceClaim c: spec.devices.requests"),
    ],
)
def test_bad_objects_are_named_with_file_document_and_field(run: _Runner, bad: Json, message: str) -> None:
    code, out, err = run(*TWO_NODES, bad, template("t"))
    assert (code, out) == (2, "")
    assert "objects.yaml, document 6" in err
    assert message in err
    assert "next: " in err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--node", "n9"), "--node: there is no node n9 among the objects"),
        (("--features", "k8s-2.0"), "'k8s-2.0' is no feature"),
        (("--features", ""), "no features given"),
        (("--jsonl", "-o", "yaml"), "--jsonl answers in JSON"),
        (("--jsonl", "-f", "another"), "--jsonl reads one file"),
    ],
)
def test_bad_flags_are_named(run: _Runner, flags: tuple[str, ...], message: str) -> None:
    code, _, err = run(*TWO_NODES, claim("c"), flags=flags)
    assert code == 2
    assert message in err
    assert "next: " in err


def test_nodes_of_devices_are_nodes(run: _Runner) -> None:
    network = resource_slice("", {**device("a"), "nodeName": "n1"}, {**device("b", "B"), "nodeName": "n2"})
    network["spec"]["pool"]["name"] = "network"
    network["spec"]["perDeviceNodeSelection"] = True
    del network["spec"]["nodeName"]
    assert run.claims(device_class(), network, claim("c", model="B"))["c"]["node"] == "n2"


def test_without_any_node_nothing_can_be_placed(run: _Runner) -> None:
    code, _, err = run(device_class(), claim("c"))
    assert code == 2
    assert "no Node is given, and no slice names one" in err


def test_without_files_the_flag_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["allocate"]) == 2
    assert "next: name a file with -f" in capsys.readouterr().err
