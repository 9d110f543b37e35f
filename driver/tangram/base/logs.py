"""Structured logs: JSON lines on standard error, one event name per fact."""

import logging
import sys
from typing import Any, Literal, TextIO

import structlog
import structlog.tracebacks

Logger = structlog.typing.FilteringBoundLogger
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["json", "console"]


def configure_logging(
    *, level: LogLevel = "info", log_format: LogFormat = "json", stream: TextIO | None = None
) -> None:
    """Sets structlog up once per process; records of other libraries go the same way at warning level."""
    numeric = logging.getLevelNamesMapping()[level.upper()]
    target = stream or sys.stderr
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=target.isatty())
    )
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if log_format == "json":
        # Without the locals of the frames: they may hold tokens and whole objects.
        transform = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        processors.append(structlog.processors.ExceptionRenderer(transform))
    structlog.configure(
        processors=[*processors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(numeric),
        logger_factory=structlog.PrintLoggerFactory(target),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(
        level=max(numeric, logging.WARNING),
        stream=target,
        format="%(levelname)s %(name)s %(message)s",
        force=True,
    )


def get_logger(component: str, **bound: Any) -> Logger:
    """A logger whose records carry `component` (and `bound`)."""
    logger: Logger = structlog.get_logger(component=component, **bound)
    return logger
