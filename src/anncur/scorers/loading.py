"""Turns whatever the user has into a guarded scorer: an object, a callable, or the name of one."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

from anncur.errors import InputError
from anncur.scorers.base import as_scorer
from anncur.scorers.guard import CallRules, GuardedScorer


def load_scorer(
    source: object,
    *,
    higher_is_better: bool | None = None,
    batch_size: int | None = None,
    retries: int | None = None,
    retry_wait: float | None = None,
    max_calls: int | None = None,
) -> GuardedScorer:
    """Prepare a scorer for an index.

    `source` is a callable over (query text, item text) pairs, an object with `predict(pairs)` or
    `score(query, items)`, or `"package.module:name"` of one. Unless `higher_is_better` is given, the scorer's own
    attribute of that name counts, else True. `batch_size` (128) is the most pairs in one call. For paid or flaky
    scorers: a call that raises, or answers with something other than numbers, is tried again `retries` times (0),
    first after `retry_wait` seconds (0.5) and then twice as long each time; `max_calls` caps the pairs that the
    scorer is asked for in all, retries included. Of a scorer that was loaded before, what is not given stays."""
    given = {
        "higher_is_better": higher_is_better,
        "batch_size": batch_size,
        "retries": retries,
        "retry_wait": retry_wait,
        "max_calls": max_calls,
    }
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    found = import_named(source) if isinstance(source, str) else source
    if isinstance(found, GuardedScorer):
        return found.with_rules(replace(found.rules, **changes)) if changes else found
    changes.setdefault("higher_is_better", getattr(found, "higher_is_better", True))
    return GuardedScorer(as_scorer(found), CallRules(**changes))


def import_named(name: str) -> object:
    """Import `package.module:name`."""
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise InputError(f"a scorer's name must look like package.module:name, got {name!r}")
    try:
        found: object = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"no scorer {name!r}: {error}; give package.module:name of something importable from here"
        ) from error
    return found
