from collections.abc import AsyncIterator, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.base.errors import InvalidObjectError, UnreachableError
from tangram.kube.lines import split_lines


async def stream(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def split(chunks: Iterable[bytes], *, limit: int = 100) -> list[bytes]:
    return [line async for line in split_lines(stream(chunks), source="test", max_line_bytes=limit)]


@given(st.lists(st.binary(max_size=20)), st.randoms(use_true_random=False))
async def test_any_chunking_gives_the_same_lines(lines: list[bytes], random: object) -> None:
    lines = [line.replace(b"\n", b" ") for line in lines]
    data = b"".join(line + b"\n" for line in lines)
    chunks, start = [], 0
    while start < len(data):
        end = start + random.randint(1, 9)  # type: ignore[attr-defined]
        chunks.append(data[start:end])
        start = end
    assert await split(chunks) == [line for line in lines if line]


async def test_lines_before_a_cut_are_handed_out() -> None:
    lines = split_lines(stream([b"one\ntw"]), source="watch of /x")
    assert await anext(lines) == b"one"
    with pytest.raises(UnreachableError, match="watch of /x: the stream was cut"):
        await anext(lines)


async def test_oversized_line_is_refused_before_it_is_complete() -> None:
    with pytest.raises(InvalidObjectError, match="larger than 100 bytes"):
        await split([b"x" * 60, b"x" * 60])


async def test_line_of_the_full_size_passes() -> None:
    assert await split([b"x" * 100, b"\n"]) == [b"x" * 100]
