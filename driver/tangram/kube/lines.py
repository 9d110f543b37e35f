"""A byte stream of JSON lines, split without a limit of the transport and with one of ours."""

from collections.abc import AsyncIterable, AsyncIterator

from tangram.base.errors import InvalidObjectError, UnreachableError

# The API server stores no object above 1.5 MiB (etcd); escaping can at most multiply that. Above, the stream
# is not a watch.
MAX_LINE_BYTES = 8 * 2**20


async def split_lines(
    chunks: AsyncIterable[bytes], *, source: str, max_line_bytes: int = MAX_LINE_BYTES
) -> AsyncIterator[bytes]:
    """The lines of a stream, without their line feed; empty lines are left out.

    aiohttp's own line reader gives up at a multiple of its buffer, while a watch event may be larger. Raises
    InvalidObjectError for a line above `max_line_bytes`, UnreachableError if the stream ends inside a line.
    """
    buffer = bytearray()
    async for chunk in chunks:
        searched = len(buffer)  # what was there already holds no line feed
        buffer += chunk
        start = 0
        while (end := buffer.find(b"\n", max(start, searched))) >= 0:
            if end > start:
                yield bytes(buffer[start:end])
            start = end + 1
        del buffer[:start]
        if len(buffer) > max_line_bytes:
            raise InvalidObjectError(
                f"a watch event is larger than {max_line_bytes} bytes",
                object_name=source,
                next_step="find the oversized object with kubectl and shrink it",
            )
    if buffer:
        raise UnreachableError(f"{source}: the stream was cut in the middle of an event")
