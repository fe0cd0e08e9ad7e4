"""The task's own metrics against judgements, by ir-measures.

Reads hits and judgements, feeds the scoreboard. Needs the extra `bench`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from anncur.datasets.beir import Qrels
from anncur.errors import InputError
from anncur.ranking import Hits

MEASURES = ("nDCG@10", "R@100")


def judge(answers: Sequence[Hits], qrels: Qrels) -> dict[str, float]:
    """Each measure's mean over the judged queries among the answers."""
    ir_measures = _library()
    measures = [ir_measures.parse_measure(name) for name in MEASURES]
    found = ir_measures.calc_aggregate(measures, *_judged_and_scored(ir_measures, answers, qrels))
    return {str(name): float(value) for name, value in found.items()}


def judge_queries(answers: Sequence[Hits], qrels: Qrels, measure: str) -> dict[str, float]:
    """One measure of each judged query among the answers, by its id."""
    ir_measures = _library()
    wanted = [ir_measures.parse_measure(measure)]
    found = ir_measures.iter_calc(wanted, *_judged_and_scored(ir_measures, answers, qrels))
    return {metric.query_id: float(metric.value) for metric in found}


def _library() -> Any:
    try:
        import ir_measures
    except ModuleNotFoundError as error:
        raise InputError(f"judging needs {error.name}; run pip install 'anncur[bench]'") from error
    return ir_measures


def _judged_and_scored(ir_measures: Any, answers: Sequence[Hits], qrels: Qrels) -> tuple[list[Any], list[Any]]:
    """Judgements of the queries among the answers, and the answers, as the library takes them."""
    asked = {hits.query.id for hits in answers}
    judged = [
        ir_measures.Qrel(query_id, item_id, grade)
        for query_id, grades in qrels.items()
        for item_id, grade in grades.items()
        if query_id in asked
    ]
    if not judged:
        raise InputError("none of the test queries has been judged; the queries' ids must be those of the judgements")
    return judged, [ir_measures.ScoredDoc(*entry) for entry in _entries(answers)]


def _entries(answers: Sequence[Hits]) -> Iterator[tuple[str, str, float]]:
    """Query, item and a score that keeps our order of ties, which trec_eval would break in its own way."""
    for hits in answers:
        for rank, hit in enumerate(hits):
            yield hits.query.id, hit.id, float(len(hits) - rank)
