import json

import msgspec
import pytest

from tangram.base import errors
from tangram.kube.status import api_error, stream_error


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (400, "BadRequest", errors.ApiError),
        (401, "Unauthorized", errors.UnauthorizedError),
        (403, "Forbidden", errors.ForbiddenError),
        (404, "NotFound", errors.NotFoundError),
        (409, "Conflict", errors.ConflictError),
        (409, "AlreadyExists", errors.AlreadyExistsError),
        (410, "Expired", errors.ExpiredError),
        (410, "Gone", errors.ExpiredError),
        (422, "Invalid", errors.InvalidError),
        (429, "TooManyRequests", errors.TooManyRequestsError),
        (500, "InternalError", errors.ServerError),
        (504, "Timeout", errors.ServerError),
    ],
)
def test_kind_by_status(status: int, reason: str, kind: type[errors.ApiError]) -> None:
    body = json.dumps({"kind": "Status", "reason": reason, "message": "why", "code": status}).encode()
    error = api_error(status=status, body=body, request="GET /x")
    assert type(error) is kind
    assert (error.status, error.reason) == (status, reason)
    assert "GET /x" in str(error)
    assert "why" in str(error)


@pytest.mark.parametrize(
    ("details", "header", "expected"),
    [
        (None, None, None),
        ({"retryAfterSeconds": 3}, None, 3),
        ({"retryAfterSeconds": 3}, "5", 5),
        (None, "Wed, 21 Oct 2026 07:28:00 GMT", None),
        (None, "-5", None),
        (None, "²", None),
        ({"retryAfterSeconds": 1e12}, None, 60),
        ({"retryAfterSeconds": -4}, None, 0),
    ],
)
def test_retry_after_is_bounded(details: object, header: str | None, expected: float | None) -> None:
    body = json.dumps({"details": details}).encode()
    error = api_error(status=429, body=body, request="GET /x", retry_after=header)
    assert error.retry_after_s == expected


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>502</html>", b"\xff" * 50, b"[]", b'{"message":5}', b'{"details":"x"}', b"[" * 99999],
)
def test_answer_that_is_no_status(body: bytes) -> None:
    error = api_error(status=502, body=body, request="GET /x")
    assert isinstance(error, errors.ServerError)
    assert len(str(error)) < 1300


def test_long_message_is_cut() -> None:
    body = json.dumps({"message": "m" * 100_000}).encode()
    assert len(str(api_error(status=422, body=body, request="PATCH /x"))) < 1300


def test_error_inside_a_stream() -> None:
    status = msgspec.Raw(b'{"kind":"Status","code":410,"reason":"Expired","message":"too old"}')
    assert type(stream_error(status, request="watch")) is errors.ExpiredError
    assert type(stream_error(msgspec.Raw(b"{}"), request="watch")) is errors.ServerError
