"""Blocking calls that may never return: waited for in a thread that is left behind."""

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def within_deadline(read: Callable[[], T], *, seconds: float) -> T:
    """What `read` returns or raises; TimeoutError if it takes longer: its thread is a daemon, left behind."""
    answers: queue.SimpleQueue[T | BaseException] = queue.SimpleQueue()

    def work() -> None:
        try:
            answers.put(read())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            answers.put(error)

    threading.Thread(target=work, name="deadline", daemon=True).start()
    try:
        answer = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no result within {seconds:g} s") from None
    if isinstance(answer, BaseException):
        raise answer
    return answer
