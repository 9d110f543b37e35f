"""`tangram why`: every device with what refuses it, for a pod or a claim, from files and from a cluster."""

import json
from pathlib import Path

import pytest
import yaml
from tests import fleet
from tests.dra_objects import TWO_NODES, Json, claim, device_class, node, pod, template
from tests.unit.controller.kinds import Node

from tangram.cli.main import main


def _allocated(name: str, *devices: tuple[str, str]) -> Json:
    results = [
        {"request": "r", "driver": "gpu.example", "pool": pool, "device": device} for pool, device in devices
    ]
    user = {"resource": "pods", "name": "owner", "uid": "1"}
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": [user]}
    return {**claim(name), "status": status}


class _Runner:
    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._directory = directory
        self._capsys = capsys

    def __call__(self, *words: str, objects: tuple[Json, ...] = ()) -> tuple[int, str, str]:
        file = self._directory / "objects.yaml"
        file.write_text(yaml.safe_dump_all([*TWO_NODES, *objects]))
        code = main(["why", *words, "-f", str(file)])
        printed = self._capsys.readouterr()
        return code, printed.out, printed.err


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> _Runner:
    return _Runner(tmp_path, capsys)


def test_every_refused_device_has_its_reason_in_groups_the_shortest_first(run: _Runner) -> None:
    objects = (
        _allocated("held", ("n2", "b"), ("n2", "c")),
        _allocated("other", ("n1", "b")),
        pod("p", templates=("one",)),
        template("one", model="B"),
    )
    code, out, _ = run("p", objects=objects)
    assert code == 3
    assert "claim default/p-one cannot be allocated now:" in out
    lines = [line.strip() for line in out.partition("refused devices:")[2].splitlines() if line.strip()]
    counts, devices = lines[::2], lines[1::2]
    assert [int(line.split()[0]) for line in counts] == [1, 2, 2]
    assert "default/other" in counts[0]
    assert devices[0] == "n1/b"
    by_text = dict(zip(counts, devices, strict=True))
    assert next(value for key, value in by_text.items() if "default/held" in key) == "n2/b, n2/c"
    assert next(value for key, value in by_text.items() if "model is A" in key) == "n1/a, n2/a"


def test_devices_of_other_classes_come_last(run: _Runner) -> None:
    other = device_class("b-only")
    other["spec"]["selectors"].append(
        {"cel": {"expression": "device.attributes['gpu.example'].model == 'B'"}}
    )
    held = _allocated("held", ("n2", "b"), ("n2", "c"), ("n1", "b"))
    code, out, _ = run("c", objects=(held, other, claim("c", class_name="b-only")))
    assert code == 3
    groups = out.partition("refused devices:\n")[2].splitlines()[::2]
    assert [line.strip() for line in groups] == [
        "3  is held by claim default/held",
        "2  is not of class b-only: device.attributes['gpu.example'].model == 'B' (model is A)",
    ]


def test_programs_get_each_device(run: _Runner) -> None:
    code, out, _ = run("claim/c", "-o", "json", objects=(claim("c", count=9),))
    report = json.loads(out)
    assert (report["apiVersion"], report["kind"]) == ("tangram/v1alpha1", "Why")
    (answer,) = report["claims"]
    assert code == 3
    assert (answer["name"], answer["allocated"], answer["allocation"]) == ("c", False, None)
    assert answer["reasons"]
    code, out, _ = run("c", "-o", "yaml", objects=(claim("c", model="Z"),))
    refusals = yaml.safe_load(out)["claims"][0]["refusals"]
    assert [(each["node"], each["device"]) for each in refusals] == [
        ("n1", "a"),
        ("n1", "b"),
        ("n2", "a"),
        ("n2", "b"),
        ("n2", "c"),
    ]
    assert {each["code"] for each in refusals} == {"selector"}


def test_an_allocated_claim_says_what_it_has_and_who_uses_it(run: _Runner) -> None:
    code, out, _ = run("claim/held", objects=(_allocated("held", ("n2", "b")),))
    assert code == 0
    assert out.splitlines() == [
        "claim default/held is allocated:",
        "  r: b of pool n2, driver gpu.example",
        "  in use by pods/owner",
    ]


def test_of_an_allocated_claim_it_is_said_why_it_is_not_ready(run: _Runner) -> None:
    """Its pod is in ContainerCreating, or has lost its device: the driver on the node says so."""
    held = _allocated("held", ("n2", "b"), ("n2", "c"))
    ready = {"type": "Ready", "status": "True", "reason": "Prepared", "message": "well"}
    failed = {**ready, "status": "False", "reason": "PrepareFailed", "message": "the GPU hangs;\nreboot"}
    held["status"]["devices"] = [
        {
            "driver": "gpu.example",
            "pool": "n2",
            "device": "b",
            "conditions": [{**failed, "type": "Cool"}, failed],
        },
        {"driver": "gpu.example", "pool": "n2", "device": "c", "conditions": [ready]},
        {"driver": "gpu.example", "pool": "n2", "device": "d", "conditions": None},
        {"device": "e", "conditions": "of no driver that keeps to the API"},
    ]
    code, out, _ = run("claim/held", objects=(held,))
    assert code == 0
    assert out.splitlines()[3:] == ["  b is not ready: the GPU hangs; reboot", "  in use by pods/owner"]
    _, out, _ = run("claim/held", "-o", "json", objects=(held,))
    assert json.loads(out)["claims"][0]["reasons"] == ["b is not ready: the GPU hangs; reboot"]


def test_what_fits_now_is_said(run: _Runner) -> None:
    code, out, _ = run("c", objects=(claim("c"),))
    assert code == 0
    assert "is not allocated, but fits on node n" in out
    assert "kubectl describe resourceclaim -n default c" in out


def test_a_claim_is_explained_with_the_pod_that_uses_it(run: _Runner) -> None:
    user = pod("user", claims=("c", "d"))
    code, out, _ = run("claim/c", objects=(user, claim("c"), claim("d", count=9)))
    assert code == 3
    assert "claims default/c, default/d cannot be allocated now:" in out


def test_other_pods_may_be_unfinished(run: _Runner) -> None:
    code, _, _ = run("c", objects=(claim("c"), pod("other", templates=("not-there-yet",))))
    assert code == 0


def test_a_fatal_error_is_said_as_such(run: _Runner) -> None:
    code, out, _ = run("c", objects=(claim("c", class_name="absent"),))
    assert code == 3
    assert "absent" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nobody",), "there is no pod and no claim default/nobody"),
        (("pod/c",), "there is no pod default/c"),
        (("claim/p",), "there is no claim default/p"),
        (("c", "-n", "elsewhere"), "elsewhere/c"),
        (("job/c",), "names neither a pod nor a claim"),
        (("pod/",), "names neither a pod nor a claim"),
    ],
)
def test_unknown_targets_are_named(run: _Runner, words: tuple[str, ...], message: str) -> None:
    code, _, err = run(*words, objects=(claim("c"), node("n3"), device_class("d")))
    assert code == 2
    assert message in err
    assert "next: " in err


def test_without_a_cluster_the_next_step_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["why", "p"]) == 2
    assert "next: " in capsys.readouterr().err


def test_a_share_where_the_server_keeps_nothing_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = Node(version="1.34", replicas=2)
    kinds.take("mps", mps={"threadPercent": 60, "pinnedMemory": "8Gi"})
    objects = [
        *kinds.world.objects("ResourceSlice", "DeviceClass", "Node"),
        kinds.stored("c1"),
        fleet.claim("fits", class_name=fleet.KIND_CLASSES["mps"], config=[_cores(40)]),
        fleet.claim("large", class_name=fleet.KIND_CLASSES["mps"], config=[_cores(41)]),
    ]
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    assert main(["why", "claim/fits", "-f", str(file)]) == 0
    assert "fits on node n1 now" in capsys.readouterr().out
    assert main(["why", "claim/large", "-f", str(file)]) == 3
    assert "capacity cores: 41 needed, 40 of 100 left" in capsys.readouterr().out


@pytest.mark.parametrize("written", ["lots", "-1"])
def test_a_share_that_cannot_be_read_counts_as_the_whole_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], written: str
) -> None:
    kinds = Node(version="1.34", replicas=2)
    kinds.take("mps", mps={"threadPercent": 10, "pinnedMemory": "8Gi"})
    held = json.loads(json.dumps(kinds.stored("c1")))
    (entry,) = held["status"]["allocation"]["devices"]["config"][-1:]
    assert entry["opaque"]["parameters"]["kind"] == "GPUShares"
    entry["opaque"]["parameters"]["results"][0]["consumedCapacity"]["memory"] = written
    objects = [
        *kinds.world.objects("ResourceSlice", "DeviceClass", "Node"),
        held,
        fleet.claim("c2", class_name=fleet.KIND_CLASSES["mps"], config=[_cores(10)]),
    ]
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    whole = "held by claim default/c1, whose share cannot be read: it counts as the whole GPU"
    assert main(["why", "claim/c2", "-f", str(file)]) == 3
    assert whole in capsys.readouterr().out
    assert main(["allocate", "-f", str(file), "-o", "json"]) == 3
    (answer,) = json.loads(capsys.readouterr().out)["claims"]
    assert answer["allocation"] is answer["error"] is None
    assert any(whole in reason for reason in answer["reasons"])


def _cores(percent: int) -> Json:
    return fleet.parameters(mps={"threadPercent": percent, "pinnedMemory": "1Gi"})
