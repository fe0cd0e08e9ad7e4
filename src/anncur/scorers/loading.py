"""Turns whatever the user has into a guarded scorer: an object, a callable, or the name of one."""

from __future__ import annotations

import importlib

from anncur.errors import InputError
from anncur.scorers.base import as_scorer
from anncur.scorers.guard import CallRules, GuardedScorer


def load_scorer(
    source: object,
    *,
    higher_is_better: bool | None = None,
    batch_size: int = CallRules.batch_size,
    retries: int = CallRules.retries,
    retry_wait: float = CallRules.retry_wait,
    max_calls: int | None = CallRules.max_calls,
) -> GuardedScorer:
    """Prepare a scorer for an index.

    `source` is a callable over (query text, item text) pairs, an object with `predict(pairs)` or
    `score(query, items)`, or `"package.module:name"` of one. Unless `higher_is_better` is given, the scorer's own
    attribute of that name counts, else True. For paid or flaky scorers: a call that raises is tried again `retries`
    times, first after `retry_wait` seconds and then twice as long each time; `max_calls` caps the pairs that the
    scorer is asked for in all, retries included."""
    if isinstance(source, GuardedScorer):
        return source
    found = import_named(source) if isinstance(source, str) else source
    if isinstance(found, GuardedScorer):
        return found
    if higher_is_better is None:
        higher_is_better = bool(getattr(found, "higher_is_better", True))
    rules = CallRules(
        higher_is_better=higher_is_better,
        batch_size=batch_size,
        retries=retries,
        retry_wait=retry_wait,
        max_calls=max_calls,
    )
    return GuardedScorer(as_scorer(found), rules)


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
