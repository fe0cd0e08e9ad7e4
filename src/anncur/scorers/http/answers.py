"""Reads what endpoints answer, and counts what it cost.

Used by `client.py`, which fetches answers, and by the formats, which know where scores stand in them. Trusts nothing: a
place that isn't there is None, and only a finite JSON number is a number."""

from __future__ import annotations

import json
import math
import re
import threading
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Any

from anncur.errors import ScorerOutputError, TruncationWarning

LONGEST_MESSAGE = 200  # characters of the endpoint's own words


@dataclass(frozen=True)
class Reply:
    """What an endpoint answered; `message` is its own explanation where it refused, without the key."""

    status: int
    content: bytes
    message: str

    @property
    def is_answer(self) -> bool:
        """Whether it holds what was asked for."""
        return 200 <= self.status < 300

    def refuses(self, reason: re.Pattern[str]) -> bool:
        """Whether it refuses the request for this reason, by its own words."""
        return self.status in {400, 413, 422} and reason.search(self.message) is not None


class Tally:
    """What an endpoint has cost and cut so far; in a copy or another process it starts at nothing."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self.n_truncated = 0
        self.too_long = math.inf  # characters of the shortest pair that was refused as too long
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[Tally], tuple[()]]:
        return Tally, ()

    def add(self, unit: str, amount: object) -> None:
        """Count what was billed; anything but a number above zero is passed over."""
        number = finite(amount)
        if number is not None and number > 0:
            with self._lock:
                self.spent[unit] += math.ceil(number)

    def add_too_long(self, n_characters: int) -> None:
        """Take in the longest pair of a request that was refused because a text was too long."""
        with self._lock:
            self.too_long = min(self.too_long, n_characters)

    def add_truncated(self, warning: str) -> None:
        """Count a request with a text that was cut; the first one warns."""
        with self._lock:
            self.n_truncated += 1
            is_first = self.n_truncated == 1
        if is_first:
            warnings.warn(warning, TruncationWarning, stacklevel=2)


def parsed(reply: Reply, url: str) -> Any:
    """The JSON of an answer."""
    try:
        return json.loads(reply.content)
    except (ValueError, RecursionError) as error:
        raise ScorerOutputError(f"the endpoint {url} must answer with JSON, got something else: {error}") from error


def field_of(value: Any, *names: str | int) -> Any:
    """What stands at this place of nested objects and lists; None where there is no such place."""
    for name in names:
        if isinstance(value, dict) and isinstance(name, str):
            value = value.get(name)
        elif isinstance(value, list) and isinstance(name, int) and name < len(value):
            value = value[name]
        else:
            return None
    return value


def finite(value: object) -> float | None:
    """A JSON number as a float; None for anything else: a truth, a string, NaN, a number that no float holds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def kind_of(value: object) -> str:
    """A number as it is, of anything else its type: what an endpoint sends is not for messages."""
    return f"{value!r:.40}" if isinstance(value, (int, float)) else type(value).__name__


def shortened(text: str) -> str:
    """A few words that are safe to print."""
    shown = "".join(character if character.isprintable() else " " for character in text)
    shown = " ".join(shown.split()) or "no explanation"
    return shown if len(shown) <= LONGEST_MESSAGE else shown[: LONGEST_MESSAGE - 1] + "…"


def explanation(content: bytes) -> str:
    """The endpoint's own explanation, in any of the places where the formats put it."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return content[:2000].decode("utf-8", "replace")
    places: list[tuple[str | int, ...]] = [
        ("error", "message"),
        ("error",),
        ("message",),
        ("detail", 0, "msg"),
        ("detail", "message"),
        ("detail",),
    ]
    found = (field_of(body, *place) for place in places)
    return next((text for text in found if isinstance(text, str)), json.dumps(body))
