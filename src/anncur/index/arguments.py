"""What users pass to an index, checked once, before anything is paid for or written."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

from anncur.errors import AnncurWarning, InputError
from anncur.index.backend import Contents
from anncur.index.folder_build import check_shard
from anncur.retrievers.base import Retriever
from anncur.retrievers.embeddings import EMBEDDINGS
from anncur.retrievers.user_embeddings import EmbedItems
from anncur.scores import ScoreMatrix


def check_has_embeddings(own: Mapping[str, Retriever], contents: Contents) -> None:
    """Refuse functions for embeddings that would never be called."""
    if EMBEDDINGS in own and EMBEDDINGS not in contents.retrievers:
        raise InputError(
            f"{contents.path} was built without embeddings, so that embeddings=… and embed_queries=… mean nothing to "
            "it; build it with embeddings=…"
        )


def as_function(embeddings: object) -> EmbedItems | None:
    """An array of embeddings is for the items that come with it."""
    if embeddings is not None and not callable(embeddings):
        raise InputError(
            f"an index is opened with embeddings=… that are a function of a list of items, got "
            f"{type(embeddings).__name__}; pass an array to index.add"
        )
    return embeddings


def checked_id(item_id: object) -> str:
    """The id of an item."""
    if not isinstance(item_id, str):
        raise InputError(f"an item's id is a string, got {item_id!r}")
    return item_id


def check_path(path: object, exact_scores: ScoreMatrix | None, shard: tuple[int, int] | None) -> None:
    """Refuse what doesn't go together with a build on disk, or in memory."""
    check_shard(shard)
    if path is None:
        if shard is not None:
            raise InputError("shard goes with a path: several processes fill one index on disk")
        return
    if exact_scores is not None:
        raise InputError("exact_scores go with an index in memory; on disk a build resumes by itself")
    as_folder(path)


def as_folder(path: object) -> Path:
    """The folder of an index."""
    if not isinstance(path, (str, Path)) or not str(path):
        raise InputError(f"path must be the name of a folder, got {path!r}")
    return Path(path)


def warn_of_script(fingerprint: str, scorer_name: str) -> None:
    """A scorer that is known by a name in the script that runs isn't found under that name by any other program."""
    if fingerprint.startswith("__main__:") and not scorer_name:
        warnings.warn(
            f"the scorer {fingerprint} is defined in a script, so that other programs can't find it under this name; "
            "pass load_scorer(scorer, fingerprint='my-scorer-v1'), or define it in a module",
            AnncurWarning,
            stacklevel=3,
        )
