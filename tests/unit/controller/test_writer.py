"""Requests whose answers may be lost: the outcome is known in the end, or said to be unknown."""

import asyncio
from collections.abc import Iterable

import pytest

from tangram.base.errors import ConflictError, ForbiddenError, ServerError, TangramError, UnreachableError
from tangram.controller.writer import certainly
from tangram.testing.clock import FakeClock

LOST = UnreachableError("no answer")
BROKEN = ServerError("out of order", status=500)
CHANGED = ConflictError("changed", status=409)


async def outcome(*answers: object) -> tuple[object, int]:
    """What comes of these answers in turn, and how many were asked for."""
    clock, asked = FakeClock(), 0

    async def request() -> object:
        nonlocal asked
        answer = answers[asked]
        asked += 1
        if isinstance(answer, TangramError):
            raise answer
        return answer

    task = asyncio.ensure_future(certainly(request, clock=clock))
    while not task.done():
        await clock.advance(60)
    error = task.exception()
    return (error or task.result()), asked


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (["done"], "done"),
        ([LOST, "done"], "done"),
        ([LOST] * 50 + ["done"], "done"),
        ([CHANGED], CHANGED),
        ([LOST, CHANGED], None),
        ([BROKEN, CHANGED], None),
        ([BROKEN, BROKEN, BROKEN, "done"], "done"),
        ([BROKEN] * 4, BROKEN),
        ([BROKEN, BROKEN, BROKEN, LOST, BROKEN, BROKEN, BROKEN, "done"], "done"),
    ],
)
async def test_certainly(answers: Iterable[object], expected: object) -> None:
    assert await outcome(*answers) == (expected, len(list(answers)))


async def test_a_refusal_is_certain() -> None:
    refusal = ForbiddenError("no", status=403)
    assert await outcome(LOST, refusal) == (refusal, 2)
