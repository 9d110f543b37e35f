"""Running a command that ends by signal: graceful stop, a bound on it, exit codes, the last log line."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable

from tangram.base.errors import TangramError
from tangram.base.logs import configure_logging, get_logger
from tangram.base.settings import Loaded, T

_SLACK_S = 0.9
"""What a stop may take beyond the grace for running calls, before the process ends itself."""


def exit_on_early_signal() -> None:
    """Makes SIGTERM and SIGINT end the process at once until `run_daemon` takes over.

    Needed because a container's first process ignores SIGTERM unless it asks for it.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))


def run_daemon(command: str, loaded: Loaded[T], main: Callable[[T], Awaitable[None]]) -> int:
    """Runs `main` until it returns or a signal cancels it; returns the exit code.

    TangramError is logged and raised on; any other exception is logged as `internal_error` (exit code 1). A
    stop that takes longer than the grace plus 0.9 s ends the process hard with exit code 1.
    """
    settings = loaded.settings
    configure_logging(level=settings.log_level, log_format=settings.log_format)
    log = get_logger(command)
    log.info("settings", settings=loaded.report())
    for warning in loaded.warnings:
        log.warning("suspicious_environment", problem=warning)
    debug = settings.log_level == "debug"
    try:
        return asyncio.run(_until_signal(command, main(settings), grace_s=settings.shutdown_grace_s))
    except Exception as raised:
        error = _first(raised)
        if isinstance(error, TangramError):
            log.exception("stopped_by_error", error=error.cause, next_step=error.next_step, exc_info=debug)
            raise error from None
        log.exception("internal_error", error=repr(error), where=_where(error), exc_info=debug)
        return internal_error(error, next_step="run again with --log-level debug and report what it logs")


def internal_error(error: BaseException, *, next_step: str = "report this as a bug") -> int:
    """Tells an error that should not be in a sentence, instead of a traceback; returns the exit code."""
    print(f"error: internal error: {error!r} at {_where(error)}", file=sys.stderr)
    print(f"next: {next_step}", file=sys.stderr)
    return 1


async def _until_signal(command: str, main: Awaitable[None], *, grace_s: float) -> int:
    log = get_logger(command)
    task = asyncio.ensure_future(main)
    stopping = False

    def stop(number: signal.Signals) -> None:
        nonlocal stopping
        if stopping:
            return
        stopping = True
        log.info("stopping", signal=number.name)
        watchdog = threading.Timer(grace_s + _SLACK_S, _end_hard, args=(command,))
        watchdog.daemon = True
        watchdog.start()
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    try:
        await task
    except asyncio.CancelledError:
        if not stopping:
            raise
    log.info("stopped")
    return 0


def _end_hard(command: str) -> None:
    """A thread that hangs in the GPU driver would keep the interpreter from ending for ever."""
    get_logger(command).error("stop_took_too_long")
    os._exit(1)


def _first(error: BaseException) -> BaseException:
    """The error itself, or the first one of a group of tasks."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _where(error: BaseException) -> str:
    """File and line of the innermost frame."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else "unknown"
