"""hack/bench: its registry, its results on paper, and the document made of them."""

import argparse
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from benchlib import cli, document
from benchlib.registry import BENCHES, Entry, load
from benchlib.results import Goal, Machine, Measurement, Result, Results, read_results, to_json
from benchlib.series import quantile, summarize
from clusterlib.errors import ClusterError

MACHINE = Machine(cpu="a CPU", cpus=2, memory_bytes=2**34, kernel="6.1", os="an OS", load=(0.5, 1.5))


def result(bench: str = "probe", *, variant: str = "", goals: tuple[Goal, ...] = ()) -> Result:
    return Result(
        bench=bench,
        variant=variant,
        goals=list(goals),
        commit="abc1234",
        measured_at="2026-01-01T00:00:00Z",
        duration_seconds=1.5,
        machine=MACHINE,
        versions={"python": "3.11.2"},
    )


def test_quantiles_are_linear_between_neighbours() -> None:
    assert quantile([1.0, 2.0, 4.0], 0.5) == 2.0
    assert quantile([1.0, 2.0, 4.0], 0.75) == 3.0
    assert quantile([7.0], 0.99) == 7.0
    summary = summarize([4.0, 1.0, 3.0, 2.0, 5.0], unit="ms")
    assert (summary.n, summary.p50, summary.iqr, summary.minimum, summary.maximum) == (5, 3.0, 2.0, 1.0, 5.0)
    with pytest.raises(ValueError, match="no samples"):
        summarize([], unit="ms")


def test_a_result_replaces_the_one_of_the_same_bench_and_variant() -> None:
    first, other = result(variant="1.34"), result(variant="1.36")
    second = msgspec.structs.replace(first, commit="def5678")
    results = Results().with_(first).with_(other).with_(second)
    assert results.items == [second, other]
    assert results.of("probe") == {"1.34": second, "1.36": other}
    assert results.of("another") == {}


def test_results_read_back_what_was_written(tmp_path: Any) -> None:
    path = tmp_path / "benchmarks.json"
    assert read_results(path) == Results()
    results = Results().with_(result(goals=(Goal(name="x", value=1, limit=2, unit="ms"),)))
    path.write_text(to_json(results))
    assert read_results(path) == results
    assert '"kind": "BenchmarkResults"' in path.read_text()
    assert '"measuredAt"' in path.read_text()


def test_only_goals_that_are_no_stretch_count_as_missed() -> None:
    missed = Goal(name="a", value=3, limit=2, unit="ms")
    stretch = Goal(name="b", value=3, limit=2, unit="ms", stretch=True)
    met = Goal(name="c", value=2, limit=2, unit="ms")
    assert result(goals=(missed, stretch, met)).missed == [missed]


@pytest.mark.parametrize("name", BENCHES)
def test_every_bench_offers_what_the_registry_promises(name: str) -> None:
    bench = load(name)
    parser = argparse.ArgumentParser()
    bench.configure(parser)
    assert parser.description
    parser.parse_args([])  # `all` runs with the defaults
    assert callable(bench.measure)
    assert callable(bench.section)


@pytest.mark.parametrize("words", [["--help"], *([name, "--help"] for name in BENCHES)])
def test_help_is_there(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli.main(words)
    assert exit_info.value.code == 0
    assert "hack/bench" in capsys.readouterr().out


class Probe:
    """A bench that measures nothing."""

    def __init__(self, goal: Goal) -> None:
        self._goal = goal

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--samples", type=int, default=3)

    def measure(self, options: argparse.Namespace) -> Measurement:
        return Measurement(
            parameters={"samples": options.samples},
            series={"probe": summarize([1.0] * options.samples, unit="ms")},
            goals=[self._goal],
        )

    def section(self, results: Mapping[str, Result]) -> str:
        return f"## Probe\n\nn = {results[''].series['probe'].n}"


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Callable[[float], None]:
    """Makes a bench whose goal has that value the only one; its documents are in tmp_path."""

    def install(value: float) -> None:
        bench = Probe(Goal(name="probe p50", value=value, limit=2, unit="ms"))
        for module in (cli, document):
            monkeypatch.setattr(module, "BENCHES", {"probe": Entry(help="nothing")})
            monkeypatch.setattr(module, "load", lambda _name: bench)
        monkeypatch.setattr(document, "RESULTS", tmp_path / "benchmarks.json")
        monkeypatch.setattr(document, "DOCUMENT", tmp_path / "benchmarks.md")

    return install


@pytest.mark.parametrize(("value", "code"), [(1.0, 0), (3.0, 3)])
def test_a_bench_prints_its_result_and_tells_whether_goals_were_met(
    probe: Callable[[float], None], capsys: pytest.CaptureFixture[str], value: float, code: int
) -> None:
    probe(value)
    assert cli.main(["probe", "--samples", "5"]) == code
    shown = msgspec.json.decode(capsys.readouterr().out, type=Result)
    assert shown.bench == "probe"
    assert shown.series["probe"].n == 5
    assert shown.parameters == {"samples": 5}
    assert shown.machine.cpus >= 1
    assert shown.commit


def test_all_goes_on_after_a_failure_and_tells_it(
    monkeypatch: pytest.MonkeyPatch, probe: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    probe(3.0)
    given: list[str] = []

    class Failing(Probe):
        def configure(self, parser: argparse.ArgumentParser) -> None:
            parser.add_argument("--base-port", default="none")

        def measure(self, options: argparse.Namespace) -> Measurement:
            given.append(options.base_port)
            raise ClusterError("no cluster here", next_step="be root")

    working = Probe(Goal(name="y", value=2, limit=1, unit=""))
    failing = Failing(Goal(name="x", value=1, limit=1, unit=""))
    entries = {
        "failing": Entry(help="fails", cluster=True),
        "probe": Entry(help="nothing"),
        "long": Entry(help="not of all", in_all=False),
    }
    monkeypatch.setattr(cli, "BENCHES", entries)
    monkeypatch.setattr(cli, "load", lambda name: failing if name == "failing" else working)
    assert cli.main(["all", "--base-port", "17600"]) == 1
    assert given == ["17600"]
    said = capsys.readouterr().err
    assert "no cluster here\n  next: be root" in said
    assert "not measured: failing\ngoals missed: probe" in said
    assert document.DOCUMENT.read_text().count("## Probe") == 1


def test_all_writes_the_document_from_the_results(probe: Callable[[float], None], tmp_path: Any) -> None:
    probe(1.0)
    assert cli.main(["all"]) == 0
    page = (tmp_path / "benchmarks.md").read_text()
    assert "## Probe\n\nn = 3\n\n<sub>" in page
    assert page == document.document(read_results(tmp_path / "benchmarks.json"))


def test_the_document_in_the_repository_is_made_of_the_results_there() -> None:
    page = document.DOCUMENT.read_text(encoding="utf-8")
    assert page == document.document(read_results(document.RESULTS)), "run ./hack/bench document"
