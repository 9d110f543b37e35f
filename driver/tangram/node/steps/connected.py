"""Whether the driver is away, or only not connected to."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from tangram.base.errors import DriverUnavailableError
from tangram.hardware.workers import Workers

T = TypeVar("T")


async def connected(workers: Workers, ask: Callable[[], Awaitable[T]]) -> T:
    """The answer of a call, asked again over a new connection where the driver seems to be away: to a process
    that has only just started it does, and has all that was made before. HardwareError, as of the call; a
    DriverUnavailableError is one that a connection does not mend.
    """
    try:
        return await ask()
    except DriverUnavailableError:
        await workers.open()
        return await ask()
