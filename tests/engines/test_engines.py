"""Engines and jobs, without a cluster: what is sent, in which order units are done, and what is refused."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pytest
from typer.testing import CliRunner

import anncur
from anncur.cli.main import app
from anncur.engines.base import Job, Spread
from anncur.engines.names import as_engine
from anncur.evaluation.own import score_pairs
from anncur.filling import shared_scorer
from misbehaving import HashScorer
from misbehaving import build as build_all
from worlds import World

pytestmark = pytest.mark.slow

ITEMS = [anncur.Item(f"i{number}", f"item{number} is a thing") for number in range(60)]
QUERIES = ["query 0", "query 1", "query 2"]  # too few to tune on, which takes longer than all else
build = partial(build_all, items=ITEMS, queries=QUERIES)


class PicklingEngine:
    """Does units backwards, and some twice, with nothing but what comes through pickle, as if in other processes."""

    name = "pickling"
    is_elsewhere = True

    def __init__(self, *, n_workers: int = 2, n_machines: int = 1, lost: int = 0) -> None:
        self.spread = Spread(n_workers, n_machines)
        self.n_lost = lost  # units whose result never arrives the first time

    def run(self, job: Job[Any, Any]) -> None:
        worker: Any = None
        for unit in reversed([*job.units, *job.units]):
            payload = job.payload(unit)
            if payload is None:
                continue
            worker = worker or pickle.loads(pickle.dumps(job.loader(self.spread)))()
            before = worker.calls_made
            result = worker(pickle.loads(pickle.dumps(payload)), lambda n_more, unit=unit: job.advance(unit, n_more))
            if self.n_lost:
                self.n_lost -= 1
                continue
            job.count(worker.calls_made - before)
            job.finish(unit, pickle.loads(pickle.dumps(result)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing."""


@pytest.mark.parametrize("is_stored", [True, False])
def test_an_index_is_the_same_whoever_scores_it(tmp_path: Path, is_stored: bool) -> None:
    index = build(tmp_path / "here" if is_stored else None)
    other = build(tmp_path / "there" if is_stored else None, engine=PicklingEngine())
    assert other.digest() == index.digest()
    assert other.info.build_calls == index.info.build_calls


def test_what_a_lost_worker_had_is_done_again_and_counted_as_far_as_it_is_known(tmp_path: Path) -> None:
    assert build(tmp_path / "lost", engine=PicklingEngine(lost=3)).digest() == build(tmp_path / "here").digest()


def test_progress_counts_every_pair_once_and_ends_with_all(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    build(tmp_path / "there", engine=PicklingEngine(lost=2), progress=lambda *now: seen.append(now))
    scored = [(done, total) for stage, done, total in seen if stage == "scoring anchor queries"]
    n_pairs = len(ITEMS) * len(QUERIES)
    assert scored[-1] == (n_pairs, n_pairs)
    assert all(done <= n_pairs for done, _ in scored)


def test_a_build_that_was_stopped_here_is_finished_by_another_engine(tmp_path: Path) -> None:
    class Breaking(HashScorer):
        n_left = 9

        def score(self, query: anncur.Query, items: Any) -> list[float]:
            self.n_left -= 1
            if not self.n_left:
                raise RuntimeError("broken")
            return super().score(query, items)

    with pytest.raises(anncur.ScorerError):
        build(tmp_path / "there", scorer=Breaking())
    index = build(tmp_path / "there", engine=PicklingEngine())
    assert index.digest() == build(tmp_path / "here").digest()
    assert index.info.build_calls < len(ITEMS) * len(QUERIES)


def test_embeddings_are_the_same_whoever_computes_them(tmp_path: Path) -> None:
    embeddings: dict[str, Any] = {
        "embeddings": embed_items,
        "embed_queries": embed_queries,
        "retrievers": ["embeddings"],
    }
    here, there = (build(tmp_path / name, engine=engine, **embeddings) for name, engine in ENGINES.items())
    assert here.digest() == there.digest()


def embed_items(items: Any) -> Any:
    return np.array([[len(item.text), hash_of(item.text)] for item in items], dtype=np.float32)


def embed_queries(queries: Any) -> Any:
    return np.array([[len(query.text), hash_of(query.text)] for query in queries], dtype=np.float32)


def hash_of(text: str) -> float:
    return sum(map(ord, text)) % 17 / 17


ENGINES: dict[str, Any] = {"here": "local", "there": PicklingEngine()}


def test_answers_are_the_same_whoever_searches_and_in_the_order_of_the_queries(tmp_path: Path) -> None:
    index = build(tmp_path / "here")
    queries = [f"something else {number}" for number in range(70)]
    here = index.search_many(queries, 5, 30, max_rounds=3)
    there = index.search_many(queries, 5, 30, max_rounds=3, engine=PicklingEngine())
    assert [(hits.query.text, hits.ids, hits.scores) for hits in there] == [
        (hits.query.text, hits.ids, hits.scores) for hits in here
    ]


def test_a_query_that_fails_costs_no_other_answer_whoever_searches(tmp_path: Path) -> None:
    build(tmp_path / "here")
    index = anncur.Index.open(tmp_path / "here", "misbehaving:picky", check=False)
    queries = [f"something else {number}" for number in range(70)]
    queries[3], queries[66] = "bad one", "bad another"
    kept = []
    for engine in ("local", PicklingEngine()):
        with pytest.raises(anncur.ScorerError, match="queries with bad") as failure:
            index.search_many(queries, 5, 30, max_rounds=3, engine=engine)
        assert isinstance(failure.value.kept, list)
        kept.append([(hits.query.text, hits.ids) for hits in failure.value.kept])
    assert kept[0] == kept[1]
    assert [query for query, found in kept[1] if not found] == ["bad one", "bad another"]
    assert len(kept[1]) == 70


def test_workers_refuse_to_search_another_version_than_the_one_that_the_search_began_with(tmp_path: Path) -> None:
    index = build(tmp_path / "here")
    index.search("something", 5, 20)  # which loads the version
    anncur.Index.open(tmp_path / "here").remove(["i3"])
    with pytest.raises(anncur.InputError, match="another version"):
        index.search_many(["a", "b"], 5, 20, engine=PicklingEngine())


def test_an_index_in_memory_is_searched_by_no_other_process() -> None:
    with pytest.raises(anncur.InputError, match="save it to a folder"):
        build(None).search_many(["a"], engine=PicklingEngine())


def test_a_deadline_is_refused_where_workers_search(tmp_path: Path) -> None:
    with pytest.raises(anncur.InputError, match="deadline_ms"):
        build(tmp_path / "here").search_many(["a"], deadline_ms=100, engine=PicklingEngine())


def test_a_cap_on_spend_is_refused_where_several_processes_would_count(tmp_path: Path) -> None:
    scorer = anncur.load_scorer("misbehaving:steady", max_calls=1000)
    with pytest.raises(anncur.InputError, match="max_calls=1000"):
        build(tmp_path / "there", scorer=scorer, engine=PicklingEngine())


def test_limits_per_minute_and_at_once_are_divided_among_workers() -> None:
    scorer = anncur.load_scorer("misbehaving:steady", requests_per_minute=90, pairs_per_minute=900, concurrency=7)
    rules = shared_scorer(scorer, Spread(3, 1)).rules
    assert (rules.requests_per_minute, rules.pairs_per_minute, rules.concurrency) == (30, 300, 2)
    with pytest.raises(anncur.InputError, match="at most 7"):
        shared_scorer(scorer, Spread(8, 1))


def test_a_cache_is_shared_by_the_workers_of_one_machine_only(tmp_path: Path) -> None:
    cache = tmp_path / "scores.cache"
    build(tmp_path / "here", engine=PicklingEngine(), cache=cache)
    assert build(tmp_path / "again", engine=PicklingEngine(), cache=cache).info.build_calls == 8  # the stability check
    with pytest.raises(anncur.InputError, match="one machine"):
        build(tmp_path / "there", engine=PicklingEngine(n_machines=2), cache=cache)


def test_a_scorer_that_is_another_one_in_its_worker_is_refused(make_world: Callable[..., World]) -> None:
    scorer = anncur.load_scorer("misbehaving:steady", fingerprint="renamed")
    assert build(None, scorer=scorer, engine=PicklingEngine()).info.scorer == "renamed"

    class Changed(PicklingEngine):
        def run(self, job: Job[Any, Any]) -> None:
            if not job.units:
                return
            function, arguments = (loader := job.loader(self.spread)).func, list(loader.args)  # type: ignore[attr-defined]
            arguments[1] = "another fingerprint"
            function(*arguments)

    with pytest.raises(anncur.FingerprintError, match="in the place of another fingerprint"):
        build(None, scorer=scorer, engine=Changed())


def test_chunks_that_never_arrive_are_an_error(tmp_path: Path) -> None:
    class Elsewhere(PicklingEngine):
        def run(self, job: Job[Any, Any]) -> None:
            for unit in job.units:
                job.finish(unit, None)

    with pytest.raises(anncur.StorageError, match="path that all workers share"):
        build(tmp_path / "there", engine=Elsewhere())


@pytest.mark.parametrize("engine", ["spark", "", None, 3])
def test_an_engine_that_there_is_not_is_refused_with_the_names_of_those_there_are(engine: Any) -> None:
    with pytest.raises(anncur.InputError, match="local, ray"):
        as_engine(engine)


@pytest.mark.parametrize(
    "settings", [{"workers": 0}, {"cpus_per_worker": 0}, {"workers_per_gpu": 0}, {"retries": -1}, {"address": ""}]
)
def test_settings_of_ray_are_checked_when_they_are_given(settings: dict[str, Any]) -> None:
    with pytest.raises(anncur.InputError, match=next(iter(settings))):
        anncur.RayEngine(**settings)


def test_without_ray_the_error_names_the_extra_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(anncur.InputError, match=r"pip install 'anncur\[ray\]'"):
        build(tmp_path / "there", engine="ray")
    assert not (tmp_path / "there").exists()


def test_the_pairs_of_a_benchmark_are_the_same_whoever_scores_them(tmp_path: Path) -> None:
    scorer, queries = anncur.load_scorer("misbehaving:steady"), [anncur.Query(text) for text in QUERIES]
    here, there = (
        score_pairs(ITEMS, queries, scorer, tmp_path / name, on_cost=lambda _: None, engine=as_engine(engine))[0]
        for name, engine in ENGINES.items()
    )
    assert np.array_equal(here, there)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["build", "corpus.jsonl", "--out", "x", "--workers", "2"], "--workers goes with --engine ray"),
        (["build", "corpus.jsonl", "--out", "x", "--engine", "spark"], "local, ray"),
        (["search", "x", "one query", "--engine", "ray"], "one query is searched here"),
    ],
)
def test_commands_refuse_engines_that_make_no_sense(options: list[str], problem: str) -> None:
    refused = CliRunner().invoke(app, options)
    assert refused.exit_code == 1
    assert problem in " ".join(refused.output.split())
