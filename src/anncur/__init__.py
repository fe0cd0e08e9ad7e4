"""Find the k items that an expensive scorer likes best, without scoring them all.

index = anncur.Index.build(items, scorer, anchor_queries)
hits = index.search("what I look for", k=10, budget=200)
"""

import logging

from anncur.datasets.jsonl import read_items, read_queries
from anncur.datasets.sample import load_sample
from anncur.errors import (
    AnncurError,
    AnncurWarning,
    BudgetError,
    ChangedScorerWarning,
    DamagedError,
    DamagedWarning,
    DeadlineError,
    DuplicateIdError,
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
from anncur.items import Corpus, Item, ItemLike, Query, QueryLike
from anncur.planning.plan import BuildPlan, plan
from anncur.planning.suitability import Suitability, TuningReport
from anncur.progress import Progress, ProgressLike
from anncur.ranking import Hit, Hits, Round
from anncur.retrievers.base import Retriever
from anncur.retrievers.loading import RetrieverLike
from anncur.scorers.base import PairScorer, PreparingScorer, Scorer, ScorerLike
from anncur.scorers.cache import ScoreCache
from anncur.scorers.guard import GuardedScorer
from anncur.scorers.http.judge import Judge
from anncur.scorers.loading import load_scorer
from anncur.scores import ScoreMatrix
from anncur.search.adacur import Adacur
from anncur.search.anncur import Anncur
from anncur.search.axn import Axn
from anncur.search.base import Knowledge, Method, Proposal, QueryBlock
from anncur.search.methods import Exhaustive, Rerank
from anncur.search.posterior import Posterior

__version__ = "0.2.0"

logging.getLogger("anncur").addHandler(logging.NullHandler())

__all__ = [
    "Adacur",
    "Anncur",
    "AnncurError",
    "AnncurWarning",
    "Axn",
    "BudgetError",
    "BuildPlan",
    "ChangedScorerWarning",
    "Corpus",
    "DamagedError",
    "DamagedWarning",
    "DeadlineError",
    "DuplicateIdError",
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
    "SpendCapError",
    "StorageError",
    "Suitability",
    "TextTooLongError",
    "TruncationWarning",
    "TuningReport",
    "UnknownIdError",
    "UnstableScorerWarning",
    "load_sample",
    "load_scorer",
    "plan",
    "read_items",
    "read_queries",
]
