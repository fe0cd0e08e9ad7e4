"""Turns whatever the user has into a guarded scorer: an object, a callable, a model's file, or the name of one."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from anncur.errors import InputError
from anncur.importing import import_named
from anncur.models.checkpoint import CARD
from anncur.numbers import whole_number
from anncur.scorers.base import ScorerLike, TokenScorer, as_scorer
from anncur.scorers.cache import ScoreCache
from anncur.scorers.guard import GuardedScorer
from anncur.scorers.rules import CallRules

SHARED_BATCH = 512  # pairs of a request that searches share, where neither scorer nor user says how many


def load_scorer(
    source: ScorerLike,
    *,
    higher_is_better: bool | None = None,
    batch_size: int | None = None,
    retries: int | None = None,
    retry_wait: float | None = None,
    max_calls: int | None = None,
    concurrency: int | None = None,
    requests_per_minute: float | None = None,
    pairs_per_minute: float | None = None,
    repeats: int | None = None,
    shares_requests: bool | None = None,
    cache: str | Path | ScoreCache | None = None,
    fingerprint: str | None = None,
    threads: int | None = None,
) -> GuardedScorer:
    """Prepare a scorer for an index.

    `source` is a callable over (query text, item text) pairs, an object with `predict(pairs)`, `score(query, items)` or
    `score_pairs(pairs)`, sync or async, or `"package.module:name"` of one; `"builtin"`, the model that comes with
    anncur; an .onnx file that `anncur export` wrote; a folder that `anncur train` wrote; the name or folder of a
    CrossEncoder of sentence-transformers; or an endpoint such as `"cohere:MODEL"`, `"tei:http://…"` or
    `"judge:MODEL@URL"`. Unless `higher_is_better` is given, the scorer's own attribute of that name counts, else
    True. `batch_size` is the most pairs in one request, by default the scorer's own, or 128 (512 in shared requests).
    For paid or flaky scorers: a request that raises, or answers with something other than numbers, is tried again
    `retries` times (0), first after `retry_wait` seconds (0.5) and then twice as long each time; `max_calls` caps the
    pairs that the scorer is asked for in all, retries included. For scorers that wait: `concurrency` is the most
    requests at once in all searches of the process (unless given, one in each search), and `requests_per_minute` and
    `pairs_per_minute` are kept ahead of time. With `shares_requests`, searches that run at the same time share requests
    to a scorer that takes pairs of several queries: what comes in while a request is under way goes into the next one.
    `cache` is a file that keeps every score that was ever paid for, so that it isn't paid for again. A scorer that
    answers differently to the same pair, such as a judge that samples, is asked `repeats` times (1) for the best items
    of a search, within its budget, and the mean counts. `fingerprint` names the scorer, in the place of its own
    fingerprint or qualified name: stored scores are only ever mixed with those of a scorer of the same fingerprint. Of
    a scorer that was loaded before, what is not given stays, and what it was asked for counts. `threads` are those of a
    model that ONNX Runtime runs (the built-in one, .onnx files, folders of BERTs): by default one for each core that
    this process may use; scores don't depend on them."""
    given = {
        "higher_is_better": higher_is_better,
        "batch_size": batch_size,
        "retries": retries,
        "retry_wait": retry_wait,
        "max_calls": max_calls,
        "concurrency": concurrency,
        "requests_per_minute": requests_per_minute,
        "pairs_per_minute": pairs_per_minute,
        "repeats": repeats,
        "shares_requests": shares_requests,
    }
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if threads is not None:
        whole_number("threads", threads, least=1)
    found = find_scorer(source, threads=threads) if isinstance(source, (str, Path)) else source
    if threads is not None and getattr(found, "n_threads", None) != threads:
        raise InputError(
            "threads can be set where a model is opened that ONNX Runtime runs: 'builtin', an .onnx file, or the "
            f"folder of a BERT that was trained here; leave them out for {source!r}"
        )
    if isinstance(found, GuardedScorer):
        if not (changes or fingerprint) and cache is None:
            return found
        return found.with_rules(replace(found.rules, **changes), fingerprint=fingerprint, cache=as_cache(cache))
    changes.setdefault("higher_is_better", getattr(found, "higher_is_better", True))
    for rule, least in (("batch_size", 1), ("concurrency", 1), ("retries", 0)):
        own = getattr(found, rule, None)
        if isinstance(own, int) and own >= least:
            changes.setdefault(rule, own)
    if shares_requests:
        changes.setdefault("batch_size", SHARED_BATCH)
    name = str(source) if isinstance(source, (str, Path)) else ""
    return GuardedScorer(
        as_scorer(found),
        CallRules(**changes),
        name=name,
        fingerprint=fingerprint,
        cache=as_cache(cache),
        load_again=partial(load_scorer, source, threads=threads) if name else None,
    )


def sent_copy(scorer: GuardedScorer) -> GuardedScorer:
    """The scorer as another process would load it."""
    try:
        copied: GuardedScorer = pickle.loads(pickle.dumps(scorer))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise InputError(
            f"the scorer {scorer.fingerprint} can't be sent to workers: {error}; pass its name, package.module:name"
        ) from error
    return copied


def as_cache(cache: str | Path | ScoreCache | None) -> ScoreCache | None:
    """A cache of scores, opened by its path."""
    return ScoreCache(cache) if isinstance(cache, (str, Path)) else cache


def find_scorer(source: str | Path, *, threads: int | None = None) -> object:
    """What a file, a folder or a name stands for; `threads` are for what ONNX Runtime runs."""
    name, path = str(source), Path(source)
    if name == "builtin" or path.suffix == ".onnx":
        from anncur.scorers.onnx import BUILTIN, OnnxScorer

        return OnnxScorer.open(BUILTIN if name == "builtin" else path, threads=threads)
    if (path / CARD).is_file():
        return open_trained(path, threads=threads)
    if path.is_dir():
        return open_cross_encoder(name)
    if ":" in name:
        from anncur.scorers.http.names import open_endpoint

        return open_endpoint(name) or import_named(name, "scorer")
    if "/" in name and isinstance(source, str) and not name.startswith((".", "/", "~")):
        return open_cross_encoder(name)
    raise InputError(
        f"no scorer {name!r}; give 'builtin', an .onnx file, a model's folder, package.module:name, or the name of a "
        "CrossEncoder such as 'cross-encoder/ms-marco-MiniLM-L6-v2'"
    )


def open_trained(folder: Path, *, threads: int | None = None) -> TokenScorer:
    """A cross-encoder's folder: by ONNX Runtime if it is a BERT, else by torch."""
    from anncur.models.export import export_bytes, is_exportable

    if is_exportable(folder):
        from anncur.scorers.onnx import OnnxScorer

        return OnnxScorer(export_bytes(folder), threads=threads, where=str(folder))
    try:
        from anncur.scorers.trained import TrainedScorer
    except ModuleNotFoundError as error:
        raise InputError(f"{folder} needs {error.name}; run pip install 'anncur[train]'") from error
    return TrainedScorer(folder)


def open_cross_encoder(name: str) -> object:
    """A CrossEncoder of sentence-transformers, by its name or folder."""
    try:
        from sentence_transformers import CrossEncoder
    except ImportError as error:
        raise InputError(
            f"the scorer {name!r} needs sentence-transformers ({error}): pip install 'anncur[st]'"
        ) from error
    try:
        return CrossEncoder(name)
    except Exception as error:  # loading a model may raise anything
        raise InputError(
            f"no scorer {name!r}: sentence-transformers can't load it: {error}; give the folder or name of a "
            "CrossEncoder, an .onnx file, or package.module:name"
        ) from error
