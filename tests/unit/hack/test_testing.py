"""./hack/test: stages in lanes, and what counts as failed."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from devtools import testing
from devtools.report import Totals
from devtools.stages import Result, Run, Stage
from devtools.testing import Options, counted, lanes


def shell(name: str, *scripts: str, **more: object) -> Stage:
    return Stage(name=name, budget_s=60, commands=[("sh", "-c", script) for script in scripts], **more)  # type: ignore[arg-type]


def problems(run: Run) -> dict[str, str]:
    return {result.stage.name: result.problem for result in run.results}


async def test_lanes_run_beside_each_other_and_their_output_is_not_mixed(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    for name in ("there", "back"):
        os.mkfifo(tmp_path / name)
    one = shell("one", f"echo a1; echo >{tmp_path}/there; cat {tmp_path}/back; echo a2")
    two = shell("two", f"echo b1; cat {tmp_path}/there; echo b2; echo >{tmp_path}/back", "echo b3 >&2")
    run = Run(tmp_path, several=True)
    await run.lanes([[one], [two]])
    assert problems(run) == {"one": "", "two": ""}
    out, _ = capfdbinary.readouterr()
    text = out.decode()
    assert "== one (budget 60 s)\na1\n\na2\n== one" in text
    assert "== two (budget 60 s)\nb1\n\nb2\nb3\n== two" in text


async def test_it_tells_what_runs_and_how_far(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "go")
    run = Run(tmp_path, several=True, progress_every_s=0.01)
    stage = shell("unit", f"printf '... [ 42%%]\\n'; cat {tmp_path}/go")
    task = asyncio.create_task(run.lanes([[stage]]))
    seen = ""
    async with asyncio.timeout(60):
        while "unit 0 s [ 42%]" not in seen:
            await asyncio.sleep(0)
            seen += capfd.readouterr().out
    (tmp_path / "go").write_text("")
    await task
    assert problems(run) == {"unit": ""}


async def test_with_one_lane_the_output_comes_at_once(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    os.mkfifo(tmp_path / "go")
    run = Run(tmp_path, several=False)
    task = asyncio.create_task(run.lanes([[shell("one", f"echo early; cat {tmp_path}/go")]]))
    seen = b""
    async with asyncio.timeout(60):
        while b"early" not in seen:
            await asyncio.sleep(0)
            seen += capfdbinary.readouterr().out
    (tmp_path / "go").write_text("")
    await task


async def test_a_stage_that_fails_does_not_keep_others_from_running(tmp_path: Path) -> None:
    run = Run(tmp_path, several=False)
    first = shell("first", "exit 3", f"touch {tmp_path}/reached")
    await run.lanes([[first, shell("second", "true"), shell("third", "kill -9 $$")]])
    assert problems(run) == {"first": "FAILED", "second": "", "third": "FAILED: ended by SIGKILL"}
    assert (tmp_path / "reached").exists()


async def test_what_needs_a_failed_stage_is_left_out_and_removals_are_not(tmp_path: Path) -> None:
    run = Run(tmp_path, several=False)
    start = shell("start", "exit 1", f"touch {tmp_path}/reached", others_need=True, stop_at_failure=True)
    await run.lanes([[start, shell("tests", "true"), shell("stop", "true", always=True)]])
    assert problems(run) == {"start": "FAILED", "tests": "LEFT OUT: start failed", "stop": ""}
    assert not (tmp_path / "reached").exists()


async def test_a_command_that_is_not_there_is_a_failure_of_its_stage(tmp_path: Path) -> None:
    run = Run(tmp_path, several=True)
    await run.lanes([[Stage(name="lint", budget_s=60, commands=[(str(tmp_path / "none"),)])]])
    assert problems(run)["lint"].startswith("FAILED: ")
    assert counted(run.results) == Totals(failed=1)


async def test_a_stage_that_hangs_is_ended(tmp_path: Path) -> None:
    run = Run(tmp_path, several=True)
    await run.lanes([[Stage(name="hang", budget_s=0.01, commands=[("sleep", "1000")])]])
    assert "ended after" in problems(run)["hang"]
    assert "over budget" in run.results[0].line()


async def test_an_end_by_signal_ends_what_the_stages_started(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pid")
    run = Run(tmp_path, several=True)
    script = f"sleep 1000 & echo $! >{tmp_path}/pid; wait"
    task = asyncio.create_task(run.lanes([[shell("one", script)]]))
    pid = int(await asyncio.to_thread((tmp_path / "pid").read_text))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(60):
        while runs(pid):  # noqa: ASYNC110 - it is no child of ours
            await asyncio.sleep(0)


def runs(pid: int) -> bool:
    """Whether there is such a process; one that nobody has waited for has ended, too."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def report(path: Path, *, tests: int, failures: int = 0) -> Path:
    path.write_text(
        f'<testsuites><testsuite tests="{tests}" failures="{failures}" errors="0" skipped="0"/></testsuites>'
    )
    return path


def test_what_counts(tmp_path: Path) -> None:
    def result(problem: str, path: Path | None) -> Result:
        return Result(stage=shell("s", report=path), seconds=1, problem=problem)

    good = report(tmp_path / "good", tests=5)
    bad = report(tmp_path / "bad", tests=5, failures=2)
    (tmp_path / "torn").write_text("<testsuite")
    assert counted([result("", good), result("", None)]) == Totals(passed=5)
    assert counted([result("FAILED", bad)]) == Totals(passed=3, failed=2)
    # Lint, a crash after the last test, before the report, and in the middle of it.
    assert counted([result("FAILED", None)]) == Totals(failed=1)
    assert counted([result("FAILED", good)]) == Totals(passed=5, failed=1)
    assert counted([result("FAILED", tmp_path / "none")]) == Totals(failed=1)
    assert counted([result("", tmp_path / "torn")]) == Totals(failed=1)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("", [["lint", "unit", "integration"]]),
        ("fast", [["unit"]]),
        ("cluster", [["cluster start 1.36.3", "cluster 1.36.3", "cluster stop 1.36.3"]]),
        (
            "matrix",
            [
                ["kubectl build", "kubectl"]
                + [
                    f"{what} {version}"
                    for version in ("1.34.4", "1.37.2")
                    for what in ("cluster start", "cluster", "cluster stop")
                ]
            ],
        ),
        (
            "all",
            [
                ["lint", "unit engine", "unit", "unit thorough", "integration"],
                ["cluster start 1.36.3", "cluster 1.36.3", "cluster stop 1.36.3"],
            ],
        ),
    ],
)
def test_what_runs(mode: str, expected: list[list[str]], tmp_path: Path) -> None:
    planned = lanes(Options(mode=mode, pytest_arguments=(), reports=tmp_path))
    assert [[stage.name for stage in stages] for stages in planned] == expected
    names = [stage.name for stages in planned for stage in stages]
    assert len(names) == len(set(names))


def test_all_tests_run_somewhere(tmp_path: Path) -> None:
    planned = lanes(Options(mode="all", pytest_arguments=("-x",), reports=tmp_path))
    suites = [stage.commands[0] for stages in planned for stage in stages if stage.report]
    parts = [[word for word in command if word.startswith("tests/")] for command in suites]
    engine = ["tests/unit/cel", "tests/unit/allocation"]
    assert parts == [engine, *([f"tests/{n}"] for n in ("unit", "unit", "integration", "cluster"))]
    # What is left out of the one is in another.
    assert "-m" not in suites[0][suites[0].index("pytest") :]
    assert {command[-3:-1] for command in map(tuple, suites[1:3])} == {
        ("-m", "thorough"),
        ("-m", "not thorough"),
    }
    left_out = {word.removeprefix("--ignore=") for command in suites for word in command if "ignore" in word}
    assert left_out == set(engine)
    assert all(command[-1] == "-x" for command in suites)


def test_wrong_usage(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--fast", "--all"], ["--none"], ["tests/unit"]):
        monkeypatch.setattr(sys, "argv", ["test", *words])
        with pytest.raises(SystemExit) as ended:
            testing.main()
        assert ended.value.code == 2
        assert "usage: ./hack/test" in capsys.readouterr().err


async def test_a_signal_gives_its_exit_code(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "started")
    options = Options(mode="fast", pytest_arguments=(), reports=tmp_path)
    run = Run(tmp_path, several=False)
    planned = [[shell("one", f"echo >{tmp_path}/started; sleep 1000")]]
    task = asyncio.create_task(testing._until_signal(run, planned, options))
    await asyncio.to_thread((tmp_path / "started").read_text)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await task == 128 + signal.SIGTERM
