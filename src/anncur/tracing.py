"""Spans of OpenTelemetry around requests, rounds and what the scorer is asked for, where its API is loaded.

`opentelemetry-api` is used if the program has imported it, as the service does where it is installed; without it, a
span is nothing. Attributes are numbers and names, never texts; of an error they have the type alone, because its
message may quote a query."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

TRACER = "anncur"


@contextmanager
def span(name: str, **attributes: str | float) -> Iterator[None]:
    """Around something that takes time."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        yield
        return
    start = trace.get_tracer(TRACER).start_as_current_span
    with start(name, attributes=attributes, record_exception=False, set_status_on_exception=False) as current:
        try:
            yield
        except Exception as error:
            current.set_status(trace.StatusCode.ERROR, type(error).__name__)
            raise
