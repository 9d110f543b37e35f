"""Running until a signal: exit codes, the last log line, and stops that hang (in processes of their own)."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = Path(__file__).parents[3] / "driver"

PROGRAM = """
import asyncio, sys, time
from tangram.base.errors import ConfigurationError
from tangram.base.settings import CommandSettings, load_settings
from tangram.cli.daemon import exit_on_early_signal, run_daemon

class Settings(CommandSettings, frozen=True, kw_only=True): pass

async def main(settings):
    print("running", flush=True)
    {body}

exit_on_early_signal()
loaded = load_settings(Settings, flags={flags}, environment=dict(TANGRAM_LOG_FORMA="x"))
sys.exit(run_daemon("sample", loaded, main))
"""
SLOW_CLEANUP = """
    try: await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0.05)
        print("cleaned", flush=True)
"""


def start(body: str, **flags: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(body=body, flags=flags)],
        env={"PYTHONPATH": str(DRIVER)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    return process


def events(log: str) -> list[str]:
    return [json.loads(line)["event"] for line in log.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_gracefully(number: signal.Signals) -> None:
    process = start(SLOW_CLEANUP)
    process.send_signal(number)
    out, log = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "cleaned\n")
    assert events(log) == ["settings", "suspicious_environment", "stopping", "stopped"]
    assert json.loads(log.splitlines()[0])["settings"]["logLevel"] == {"value": "info", "from": "default"}


def test_a_stop_that_hangs_ends_hard() -> None:
    process = start(
        "try: await asyncio.Event().wait()\n    finally: time.sleep(3600)", shutdown_grace_s="0.1"
    )
    process.terminate()
    _, log = process.communicate(timeout=30)
    assert process.returncode == 1
    assert events(log)[-1] == "stop_took_too_long"


def test_a_return_is_success() -> None:
    process = start("return")
    _, log = process.communicate(timeout=30)
    assert process.returncode == 0
    assert events(log)[-1] == "stopped"


def test_an_unexpected_error_is_an_internal_error_without_traceback() -> None:
    process = start("raise KeyError('boom')")
    _, log = process.communicate(timeout=30)
    assert process.returncode == 1
    assert events(log)[-1] == "internal_error"
    assert "Traceback" not in log
    assert "error: internal error: KeyError('boom') at <string>:" in log
    assert "next: run again with --log-level debug" in log


def test_the_traceback_is_in_the_log_at_debug_and_shows_no_locals() -> None:
    process = start("secret = 'hidden-' + 'value'\n    raise KeyError('boom')", log_level="debug")
    _, log = process.communicate(timeout=30)
    (entry,) = [json.loads(line) for line in log.splitlines() if '"internal_error"' in line]
    assert entry["exception"][0]["exc_type"] == "KeyError"
    assert "hidden-value" not in log


@pytest.mark.parametrize(
    ("raised", "event"),
    [
        ("ConfigurationError('first', next_step='do it')", "stopped_by_error"),
        ("KeyError('first')", "internal_error"),
    ],
)
def test_the_first_error_of_a_group_of_tasks_counts(raised: str, event: str) -> None:
    process = start(
        "async with asyncio.TaskGroup() as tasks:\n"
        "        tasks.create_task(asyncio.Event().wait())\n"
        f"        raise {raised}"
    )
    _, log = process.communicate(timeout=30)
    (entry,) = [json.loads(line) for line in log.splitlines() if f'"{event}"' in line]
    assert "first" in entry["error"]
    assert "Group" not in entry["error"]
    assert process.returncode == 1


def test_a_tangram_error_is_logged_and_raised_on() -> None:
    process = start("raise ConfigurationError('port 1 is taken', next_step='take another')")
    _, log = process.communicate(timeout=30)
    (entry,) = [json.loads(line) for line in log.splitlines() if '"stopped_by_error"' in line]
    assert (entry["error"], entry["next_step"]) == ("port 1 is taken", "take another")
