"""Find the k items that an expensive scorer likes best, without scoring them all.

index = anncur.Index.build(None, scorer, items, anchor_queries)
hits = index.search("small [bat] that eats fruit", k=10, budget=200)
"""

from anncur.datasets.jsonl import read_items, read_queries
from anncur.errors import AnncurError
from anncur.index.index import Index
from anncur.items import Corpus, Item, Query
from anncur.ranking import Hit, Hits
from anncur.scorers.base import Scorer
from anncur.scorers.loading import load_scorer
from anncur.search.adacur import Adacur
from anncur.search.axn import Axn
from anncur.search.one_shot import OneShot
from anncur.search.posterior import Posterior
from anncur.search.rerank import Rerank

__version__ = "0.1.0"

__all__ = [
    "Adacur",
    "AnncurError",
    "Axn",
    "Corpus",
    "Hit",
    "Hits",
    "Index",
    "Item",
    "OneShot",
    "Posterior",
    "Query",
    "Rerank",
    "Scorer",
    "load_scorer",
    "read_items",
    "read_queries",
]
