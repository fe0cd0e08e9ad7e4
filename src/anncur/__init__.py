"""Find the k items that an expensive scorer likes best, without scoring them all.

index = anncur.Index.build(items, scorer, anchor_queries)
hits = index.search("what I look for", k=10, budget=200)
"""

import importlib
import logging
from typing import TYPE_CHECKING, Any

from anncur.datasets.jsonl import read_items, read_queries
from anncur.datasets.sample import load_sample
from anncur.engines.base import Engine
from anncur.engines.ray import RayEngine
from anncur.errors import (
    AnncurError,
    AnncurWarning,
    BudgetError,
    ChangedScorerWarning,
    DamagedError,
    DamagedWarning,
    DatabaseError,
    DeadlineError,
    DriftWarning,
    DuplicateIdError,
    EngineError,
    FileFormatError,
    FingerprintError,
    InputError,
    InvalidTextError,
    LockedError,
    RequestTooLargeError,
    ResumeError,
    RetrieverError,
    ScorerAccessError,
    ScorerBusyError,
    ScorerError,
    ScorerOutputError,
    ScorerRefusedError,
    SpendCapError,
    StorageError,
    TextTooLongError,
    TruncationWarning,
    UnknownIdError,
    UnstableScorerWarning,
)
from anncur.index.index import Index, IndexInfo
from anncur.index.item_map import MapSample
from anncur.items import Corpus, Item, ItemLike, Query, QueryLike
from anncur.planning.suitability import Suitability, TuningReport
from anncur.progress import Progress, ProgressLike
from anncur.ranking import Hit, Hits, Round
from anncur.retrievers.base import Retriever
from anncur.retrievers.loading import RetrieverLike
from anncur.scorers.base import PairScorer, PreparingScorer, Scorer, ScorerLike
from anncur.scorers.cache import ScoreCache
from anncur.scorers.guard import GuardedScorer
from anncur.scorers.loading import load_scorer
from anncur.scores import ScoreMatrix
from anncur.search.adacur import Adacur
from anncur.search.anncur import Anncur
from anncur.search.axn import Axn
from anncur.search.base import Knowledge, Method, Proposal, QueryBlock
from anncur.search.drift import DriftSummary
from anncur.search.methods import Exhaustive, Rerank
from anncur.search.posterior import Posterior
from anncur.story import Story

__version__ = "0.2.0"

logging.getLogger("anncur").addHandler(logging.NullHandler())

if TYPE_CHECKING:
    from anncur.attached.attach import Attached, attach
    from anncur.planning.cluster import Cluster, ClusterPlan, plan_cluster
    from anncur.planning.plan import BuildPlan, plan
    from anncur.scorers.http.judge import Judge
    from anncur.service.app import make_service
    from anncur.service.settings import AccessTokens, ServiceSettings

_IMPORTED_LATE = {  # what few programs need, so that importing anncur stays fast
    "AccessTokens": "anncur.service.settings",
    "Attached": "anncur.attached.attach",
    "BuildPlan": "anncur.planning.plan",
    "Cluster": "anncur.planning.cluster",
    "ClusterPlan": "anncur.planning.cluster",
    "Judge": "anncur.scorers.http.judge",
    "attach": "anncur.attached.attach",
    "ServiceSettings": "anncur.service.settings",
    "make_service": "anncur.service.app",
    "plan": "anncur.planning.plan",
    "plan_cluster": "anncur.planning.cluster",
}

__all__ = [
    "AccessTokens",
    "Adacur",
    "Anncur",
    "AnncurError",
    "AnncurWarning",
    "Attached",
    "Axn",
    "BudgetError",
    "BuildPlan",
    "ChangedScorerWarning",
    "Cluster",
    "ClusterPlan",
    "Corpus",
    "DamagedError",
    "DamagedWarning",
    "DatabaseError",
    "DeadlineError",
    "DriftSummary",
    "DriftWarning",
    "DuplicateIdError",
    "Engine",
    "EngineError",
    "Exhaustive",
    "FileFormatError",
    "FingerprintError",
    "GuardedScorer",
    "Hit",
    "Hits",
    "Index",
    "IndexInfo",
    "InputError",
    "InvalidTextError",
    "Item",
    "ItemLike",
    "Judge",
    "Knowledge",
    "LockedError",
    "MapSample",
    "Method",
    "PairScorer",
    "Posterior",
    "PreparingScorer",
    "Progress",
    "ProgressLike",
    "Proposal",
    "Query",
    "QueryBlock",
    "QueryLike",
    "RayEngine",
    "RequestTooLargeError",
    "Rerank",
    "ResumeError",
    "Retriever",
    "RetrieverError",
    "RetrieverLike",
    "Round",
    "ScoreCache",
    "ScoreMatrix",
    "Scorer",
    "ScorerAccessError",
    "ScorerBusyError",
    "ScorerError",
    "ScorerLike",
    "ScorerOutputError",
    "ScorerRefusedError",
    "ServiceSettings",
    "SpendCapError",
    "StorageError",
    "Story",
    "Suitability",
    "TextTooLongError",
    "TruncationWarning",
    "TuningReport",
    "UnknownIdError",
    "UnstableScorerWarning",
    "attach",
    "load_sample",
    "load_scorer",
    "make_service",
    "plan",
    "plan_cluster",
    "read_items",
    "read_queries",
]


def __getattr__(name: str) -> Any:
    """What is imported when it is first asked for."""
    if name not in _IMPORTED_LATE:
        raise AttributeError(f"module 'anncur' has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_IMPORTED_LATE[name]), name)
    return found
