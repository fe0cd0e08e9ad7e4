"""A line of JSON for each request, on the logger `anncur.service`: who asked for what, what came of it, how long.

Texts of queries and items are in it only where the operator asked for them. Messages of errors may quote such texts,
and so only the kinds of errors are."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from anncur.errors import StorageError

if TYPE_CHECKING:
    from anncur.service.edge import Exchange

LOG = logging.getLogger("anncur.service")
QUIET = {"/livez", "/readyz", "/metrics"}  # asked for every few seconds, and of no interest while all is well
LONGEST = 1_000  # characters of a value
MOST_VALUES = 20  # of a list
LONGEST_TRACE = 20_000  # characters


class JsonLines(logging.Formatter):
    """A record as one JSON object."""

    def __init__(self, *, log_texts: bool = False) -> None:
        super().__init__()
        self._log_texts = log_texts

    def format(self, record: logging.LogRecord) -> str:
        """Fields of a request, or a message."""
        fields: dict[str, Any] = getattr(record, "fields", None) or {"message": self._message(record)}
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            fields = {**fields, "traceback": _trace(error, log_texts=self._log_texts)[-LONGEST_TRACE:]}
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {"time": when, "level": record.levelname.lower(), "logger": record.name, **fields}
        return json.dumps(line, ensure_ascii=True, default=str)

    def _message(self, record: logging.LogRecord) -> str:
        if not record.args or not isinstance(record.args, tuple):
            return record.getMessage()
        return str(record.msg) % tuple(described(each, log_texts=self._log_texts) for each in record.args)


def described(value: Any, *, log_texts: bool) -> Any:
    """Of an error its kind, and that of what caused it. Its message only if it is about files, since others may quote
    texts, or where these are logged. Anything else as it is."""
    if not isinstance(value, BaseException):
        return value
    if log_texts or isinstance(value, StorageError):
        return f"{type(value).__name__}: {value}"
    return " from ".join(type(each).__name__ for each in _causes(value))


def log_to_stderr(level: int = logging.INFO, *, log_texts: bool = False) -> None:
    """Let the service, anncur and the server write JSON lines to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(log_texts=log_texts))
    for name in ("anncur", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
    logging.captureWarnings(True)
    warned = logging.getLogger("py.warnings")
    warned.handlers, warned.propagate = [handler], False


def write_line(exchange: Exchange, route: str, seconds: float) -> None:
    """Write down one request."""
    if exchange.path in QUIET and exchange.status < 400:
        return
    fields = {
        "request_id": exchange.id,
        "method": exchange.method,
        "route": route,
        "status": exchange.status,
        "ms": round(1000 * seconds, 1),
        **{name: _short(value) for name, value in exchange.facts.items()},
    }
    LOG.log(logging.ERROR if exchange.status >= 500 else logging.INFO, "request", extra={"fields": fields})


def write_event(message: str, exchange: Exchange, *, level: int = logging.WARNING, **fields: Any) -> None:
    """Write down something else that happened to a request; an error that is handled is its `exc_info`."""
    error = fields.pop("exc_info", None)
    short = {name: _short(value) for name, value in fields.items()}
    extra = {"fields": {"message": message, "request_id": exchange.id, **short}}
    LOG.log(level, message, exc_info=error, extra=extra)


def _short(value: Any) -> Any:
    if isinstance(value, list):
        return [_short(each) for each in value[:MOST_VALUES]]
    return value[:LONGEST] if isinstance(value, str) else value


def _trace(error: BaseException, *, log_texts: bool) -> str:
    """Where an error and what caused it were raised, the first cause first."""
    if log_texts:
        return "".join(traceback.format_exception(error))
    parts = ["".join(traceback.format_tb(each.__traceback__)) + type(each).__name__ for each in _causes(error)]
    return "\n".join(reversed(parts))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error, what caused it, and so on."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        yield found
        seen.add(id(found))
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
