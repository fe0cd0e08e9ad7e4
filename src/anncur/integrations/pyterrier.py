"""An index as a transformer of PyTerrier. Needs pyterrier; no Java."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

from anncur.index.index import Index
from anncur.integrations.searching import Search, SearchOptions, needed
from anncur.items import Query
from anncur.ranking import Hits

with needed("pyterrier"):
    import pandas as pd
    import pyterrier as pt

FOUND = ["docno", "title", "text", "score", "rank", "iteration", "calls", "estimated_recall"]


class AnncurTransformer(pt.Transformer):
    """Retrieves for queries, or re-ranks results: all that it is given, unless `k` or `budget` is less.

    `index` is an index or the path of one, `options` are those of `Index.search`. Of a row, `iteration` is the round in
    which the item was scored, and `calls` and `estimated_recall` are its query's. Higher scores are better: those of a
    scorer that likes the lowest best are negated."""

    def __init__(self, index: Index | str | Path, **options: Unpack[SearchOptions]) -> None:
        super().__init__()
        self._search = Search(index, **options)

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """The columns of queries, with a row for each hit."""
        with pt.validate.any(inp, context=self) as frame:
            frame.query_frame(extra_columns=["query"], mode="retrieve")
            frame.result_frame(extra_columns=["query"], mode="rerank")
        queries = inp[pt.model.query_columns(inp)].drop_duplicates("qid")
        answers = self._answers(queries, inp if frame.mode == "rerank" else None)
        rows = [row for qid, hits in zip(queries["qid"], answers, strict=True) for row in self._rows(qid, hits)]
        found = pd.DataFrame(rows, columns=["qid", *FOUND]).astype({"score": float, "rank": int, "iteration": int})
        return queries.merge(found.astype({"qid": queries["qid"].dtype}), on="qid")

    def _answers(self, queries: pd.DataFrame, results: pd.DataFrame | None) -> list[Hits]:
        asked = [Query(text, str(qid)) for qid, text in zip(queries["qid"], queries["query"], strict=True)]
        if results is None:
            return self._search.many(asked) if asked else []
        candidates = results.groupby("qid")["docno"].unique()
        return [self._search.among(query, candidates[qid]) for qid, query in zip(queries["qid"], asked, strict=True)]

    def _rows(self, qid: Any, hits: Hits) -> list[dict[str, Any]]:
        scores = self._search.rising_scores(hits)
        return [
            {
                "qid": qid,
                "docno": hit.id,
                "title": hit.item.title,
                "text": hit.item.text,
                "score": score,
                "rank": pt.model.FIRST_RANK + place,
                "iteration": hit.round,
                "calls": hits.calls,
                "estimated_recall": hits.estimated_recall,
            }
            for place, (hit, score) in enumerate(zip(hits, scores, strict=True))
        ]
