"""The task's own metrics against judgements, by ir-measures.

Reads hits and judgements, feeds the scoreboard. Needs the extra `bench`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from anncur.datasets.beir import Qrels
from anncur.errors import InputError
from anncur.ranking import Hits

MEASURES = ("nDCG@10", "R@100")


def judge(answers: Sequence[Hits], qrels: Qrels) -> dict[str, float]:
    """Each measure's mean over the judged queries among the answers."""
    try:
        import ir_measures
    except ModuleNotFoundError as error:
        raise InputError(f"judging needs {error.name}; run pip install 'anncur[bench]'") from error
    asked = {hits.query.id for hits in answers}
    judged = [
        ir_measures.Qrel(query_id, item_id, grade)
        for query_id, grades in qrels.items()
        for item_id, grade in grades.items()
        if query_id in asked
    ]
    if not judged:
        raise InputError("none of the test queries has been judged; the queries' ids must be those of the judgements")
    scored = [ir_measures.ScoredDoc(*entry) for entry in _entries(answers)]
    measures = [ir_measures.parse_measure(name) for name in MEASURES]
    return {str(name): float(value) for name, value in ir_measures.calc_aggregate(measures, judged, scored).items()}


def _entries(answers: Sequence[Hits]) -> Iterator[tuple[str, str, float]]:
    """Query, item and a score that keeps our order of ties, which trec_eval would break in its own way."""
    for hits in answers:
        for rank, hit in enumerate(hits):
            yield hits.query.id, hit.id, float(len(hits) - rank)
