"""The outcome of one check."""

from typing import Literal

import msgspec

Result = Literal["ok", "warn", "fail", "skip"]
"""`warn`: it works, and somebody should look at it. `skip`: it does not concern the node, or is not known."""


class Check(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`name` is short and stable, `text` says what was found, `fix` what mends it (of `warn` and `fail`)."""

    name: str
    result: Result
    text: str
    fix: str = ""


def ok(name: str, text: str) -> Check:
    """All is well."""
    return Check(name=name, result="ok", text=text)


def skip(name: str, text: str) -> Check:
    """Not looked at, and why."""
    return Check(name=name, result="skip", text=text)


def warn(name: str, text: str, *, fix: str) -> Check:
    """It works, and somebody should look at it."""
    return Check(name=name, result="warn", text=text, fix=fix)


def fail(name: str, text: str, *, fix: str) -> Check:
    """Pods will not get what they should."""
    return Check(name=name, result="fail", text=text, fix=fix)
