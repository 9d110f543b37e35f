"""The control interface: what is sent, and answers of all kinds."""

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.hardware.mps.support import share

from tangram.base.errors import HardwareError, HardwareTimeoutError
from tangram.hardware.mps import control


class Daemon:
    """Answers by the first word of the last line; keeps what it was sent."""

    def __init__(self, **answers: str) -> None:
        self.sent: list[str] = []
        self._answers = answers

    async def __call__(self, command: str) -> str:
        self.sent += command.splitlines()
        return "".join(self._answers.get(line.split()[0], "") for line in command.splitlines())


async def refusal(percent: str, memory: str, **more: str) -> str:
    daemon = Daemon(
        get_default_active_thread_percentage=percent, get_default_device_pinned_mem_limit=memory, **more
    )
    return await control.set_limits(daemon, share(3072, 40))


async def test_limits_are_set_by_index_and_read_back() -> None:
    daemon = Daemon(get_default_active_thread_percentage="40.0\n", get_default_device_pinned_mem_limit="3G\n")
    assert await control.set_limits(daemon, share(3072, 40)) == ""
    assert daemon.sent == [
        "set_default_active_thread_percentage 40",
        "set_default_device_pinned_mem_limit 0 3072M",
        "get_server_list",
        "get_default_active_thread_percentage",
        "get_default_device_pinned_mem_limit 0",
    ]


@pytest.mark.parametrize(
    "memory", ["3G", "3072M", "3072MB", "3072 MiB", "3221225472", "3145728K", "limit: 3 GiB", "w\n3G"]
)
async def test_p38_forms_of_the_same_limit(memory: str) -> None:
    assert await refusal("40.0\n", f"{memory}\n") == ""


@pytest.mark.parametrize(
    "memory", ["", "0", "0M", "2G", "4G", "3071M", "3073M", "none", "-3G", "3.5G", "\uff13G"]
)
async def test_p38_another_limit_is_refused(memory: str) -> None:
    assert "set to 3072 MiB of memory, MPS reports" in await refusal("40.0\n", f"{memory}\n")


@pytest.mark.parametrize("percent", ["", "100.0", "0", "4", "41", "forty", "1000"])
async def test_another_percentage_is_refused(percent: str) -> None:
    assert "set to 40 percent" in await refusal(f"{percent}\n", "3G\n")


async def test_a_whole_number_of_gib_may_stand_for_more() -> None:
    daemon = Daemon(get_default_active_thread_percentage="50\n", get_default_device_pinned_mem_limit="3G\n")
    assert await control.set_limits(daemon, share(3500, 50)) == ""
    assert await control.set_limits(daemon, share(4096, 50)) != ""


async def test_limits_of_the_largest_boards() -> None:
    daemon = Daemon(get_default_active_thread_percentage="50\n", get_default_device_pinned_mem_limit="1T\n")
    assert await control.set_limits(daemon, share(2**20, 50)) == ""
    assert await control.set_limits(daemon, share(2**20 - 1, 50)) != ""


async def test_a_server_that_keeps_other_limits_is_refused() -> None:
    answers = {"get_server_list": "77\n", "get_device_pinned_mem_limit": "1G\n"}
    assert "'40.0\\n1G'" in await refusal("40.0\n", "3G\n", get_active_thread_percentage="40.0\n", **answers)


@given(st.text(max_size=200))
def test_hostile_answers_never_raise_anything_else(text: str) -> None:
    async def ask(_: str) -> str:
        return text

    async def all_of_it() -> None:
        pids = await control.servers(ask)
        assert all(0 < pid < 10**10 for pid in pids)
        assert await control.clients(ask, 7) == pids
        assert await control.set_limits(ask, share(10**6, 99)) != ""
        with contextlib.suppress(HardwareError):
            await control.answers(ask)

    asyncio.run(all_of_it())


async def test_a_list_without_end_is_cut() -> None:
    daemon = Daemon(get_server_list="\n".join(str(pid) for pid in range(1, 100_000)))
    assert len(await control.servers(daemon)) == 1024


async def test_an_answer_of_another_kind_is_no_answer() -> None:
    with pytest.raises(HardwareError, match="where a percentage was asked for"):
        await control.answers(Daemon(get_default_active_thread_percentage="Unknown command\n"))


@pytest.mark.parametrize(
    ("text", "faulted"),
    [
        ("FAULT\n", True),
        ("ACTIVE\n", False),
        ("INITIALIZING\n", False),
        ("Unknown command\n", False),
        ("", False),
    ],
)
async def test_the_state_of_a_server(text: str, faulted: bool) -> None:
    async def ask(command: str) -> str:
        assert command == "get_server_status 7"
        return text

    assert await control.faulted(ask, 7) is faulted


async def test_a_program_that_refuses_to_tell_the_state_of_a_server() -> None:
    """One without the command, or a server that has just ended: no silence, for which a daemon is ended."""

    async def refuse(command: str) -> str:
        raise HardwareError("the MPS daemon refused it: exit code 1")

    async def hang(command: str) -> str:
        raise HardwareTimeoutError("the MPS daemon did not answer")

    assert await control.faulted(refuse, 7) is False
    with pytest.raises(HardwareTimeoutError):
        await control.faulted(hang, 7)
