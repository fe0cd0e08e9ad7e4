"""How a service runs: what it takes at most, how much at once, who may ask, and what it writes down.

Plain values, checked here; read by everything else in this folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from anncur.errors import InputError
from anncur.numbers import number, whole_number

MEGABYTE = 2**20
SHORTEST_TOKEN = 16  # bytes
LONGEST_TOKEN = 4096

# what the schemas of requests allow; an operator may lower some of it
MOST_K = 1_000
MOST_BUDGET = 10_000
MOST_ROUNDS = 1_000
LONGEST_QUERY = 10_000  # characters
LONGEST_TEXT = 100_000  # of an item or a document
LONGEST_ID = 512
MOST_QUERIES = 64  # in a batch
MOST_DOCUMENTS = 1_000  # to re-rank
MOST_ITEMS = 1_000  # in one upsert
MOST_FIELDS = 1_000  # of an item's metadata
DEEPEST_FILTER = 16
LARGEST_FILTER = 2_000  # values and keys
LONGEST_DEADLINE_MS = 600_000
MOST_MAPPED = 5_000
LARGEST_HEADERS = 32 * 1024  # bytes


@dataclass(frozen=True)
class AccessTokens:
    """What callers must show, as bytes: `read` for searches, `write` for these and for changes of items.

    Without `read`, anybody who reaches the service may search; without `write`, nobody may change items."""

    read: bytes | None = field(default=None, repr=False)
    write: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name, token in (("read", self.read), ("write", self.write)):
            if token is not None and not SHORTEST_TOKEN <= len(token) <= LONGEST_TOKEN:
                raise InputError(
                    f"the {name} token must have {SHORTEST_TOKEN} to {LONGEST_TOKEN} bytes, got {len(token)}; make one "
                    "with python -c 'import secrets; print(secrets.token_urlsafe(32))'"
                )
            if token is not None and token != token.strip():
                raise InputError(f"the {name} token must not begin or end with white space")
        if self.read is not None and self.read == self.write:
            raise InputError("the read token and the write token must differ, or whoever may search may also write")

    @classmethod
    def find(cls, environment: Mapping[str, str], *, read_file: Path | None, write_file: Path | None) -> AccessTokens:
        """From files, or from ANNCUR_READ_TOKEN and ANNCUR_WRITE_TOKEN."""
        read = _token("ANNCUR_READ_TOKEN", environment, read_file)
        return cls(read, _token("ANNCUR_WRITE_TOKEN", environment, write_file))


@dataclass(frozen=True)
class ServiceSettings:
    """How a service runs.

    `max_running` searches run at once, and `max_waiting` others may wait for their turn; more are refused. Where more
    come than can be answered, fewer are let in, so that none takes longer than `max_slowdown` times as long as alone; 0
    for no such bound. Answers have at most `max_answer_bytes`, and a change of items is given up after
    `max_write_seconds`. Requests have at most `max_body_bytes`, which must have come in within `body_seconds`.
    `max_budget` and `max_k` may be lower than those of the schemas. An exhaustive check scores at most `max_exhaustive`
    items. With `fail_open`, first guesses are answered where the scorer fails, unless a request says otherwise. With
    `raw_relevance`, relevance in Cohere's shape is the score itself, else its logistic function. `log_texts` writes
    queries into logs. `cors_origins` may read answers in browsers; `hosts` are the names that requests may be addressed
    to, all if empty."""

    tokens: AccessTokens = field(default_factory=AccessTokens)
    max_running: int = 16
    max_waiting: int = 16
    max_slowdown: float = 2.0
    max_body_bytes: int = 8 * MEGABYTE
    max_answer_bytes: int = 32 * MEGABYTE
    max_write_seconds: float = 600.0
    body_seconds: float = 20.0
    max_budget: int = MOST_BUDGET
    max_k: int = MOST_K
    max_exhaustive: int = 20_000
    fail_open: bool = False
    raw_relevance: bool = False
    log_texts: bool = False
    cors_origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        whole_number("max_running", self.max_running, least=1)
        whole_number("max_waiting", self.max_waiting, least=0)
        if number("max_slowdown", self.max_slowdown, least=0) and self.max_slowdown <= 1:
            raise InputError(f"max_slowdown must be above 1, or 0 for no bound, got {self.max_slowdown}")
        whole_number("max_body_bytes", self.max_body_bytes, least=1)
        whole_number("max_answer_bytes", self.max_answer_bytes, least=1)
        number("max_write_seconds", self.max_write_seconds, least=0.1)
        number("body_seconds", self.body_seconds, least=0.1)
        whole_number("max_exhaustive", self.max_exhaustive, least=0)
        for name, most in (("max_budget", MOST_BUDGET), ("max_k", MOST_K)):
            if whole_number(name, getattr(self, name), least=1) > most:
                raise InputError(f"{name} must be at most {most}, got {getattr(self, name)}")


def _token(name: str, environment: Mapping[str, str], file: Path | None) -> bytes | None:
    if file is not None:
        try:
            return file.read_bytes().strip()
        except OSError as error:
            raise InputError(f"the token in {file} can't be read: {error}") from error
    value = environment.get(name)
    if value is not None and not value.strip():
        raise InputError(f"{name} is set, and empty; give it a token, or unset it")
    return None if value is None else os.fsencode(value).strip()
