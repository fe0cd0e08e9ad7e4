"""A line of JSON for each request, on the logger `anncur.service`: who asked for what, what came of it, how long.

Texts of queries and items are in it only where the operator asked for them."""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anncur.service.edge import Exchange

LOG = logging.getLogger("anncur.service")
QUIET = {"/livez", "/readyz", "/metrics"}  # asked for every few seconds, and of no interest while all is well
LONGEST = 1_000  # characters of a value


class JsonLines(logging.Formatter):
    """A record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Fields of a request, or a message."""
        fields: dict[str, Any] = getattr(record, "fields", None) or {"message": record.getMessage()}
        if record.exc_info and record.exc_info[0] is not None:
            fields = {**fields, "traceback": self.formatException(record.exc_info)}
        when = self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}"
        line = {"time": when, "level": record.levelname.lower(), "logger": record.name, **fields}
        return json.dumps(line, ensure_ascii=True, default=str)


def log_to_stderr(level: int = logging.INFO) -> None:
    """Let the service, anncur and the server write JSON lines to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
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


def _short(value: Any) -> Any:
    return value[:LONGEST] if isinstance(value, str) else value
