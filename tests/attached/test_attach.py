"""A collection that somebody else filled is searched from the first query on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import anncur
from anncur.attached.base import FoundRows
from anncur.errors import DatabaseError, FingerprintError, InputError
from embedded_worlds import N_ITEMS, N_QUERIES, WIDTH, ArrayCollection, EmbeddedWorld


@pytest.fixture(scope="module", params=["ip", "cosine", "l2"])
def world(request: pytest.FixtureRequest) -> EmbeddedWorld:
    return EmbeddedWorld(request.param)


@pytest.fixture
def plain() -> EmbeddedWorld:
    return EmbeddedWorld()


def attached(world: EmbeddedWorld, **options: Any) -> tuple[anncur.Attached, ArrayCollection]:
    collection = ArrayCollection(world.items, world.embeddings, world.metric)
    return anncur.attach(collection, world.scorer, embed_queries=world.embed, **options), collection


def test_it_finds_more_than_re_ranking_with_as_many_pairs(world: EmbeddedWorld) -> None:
    found, _ = attached(world)
    ours = world.recall(found.search_many(world.queries, 10, 100, progress=False))
    theirs = world.recall(found.search_many(world.queries, 10, 100, "rerank", progress=False))
    assert ours >= theirs + 0.05


@pytest.mark.parametrize("metric", ["ip", "cosine"])
@pytest.mark.parametrize("method", ["posterior", "rerank"])
def test_it_finds_what_an_index_of_the_same_items_finds(metric: str, method: str) -> None:
    world = EmbeddedWorld(metric)
    found, index = attached(world)[0], world.index()
    ours = found.search_many(world.queries, 10, 80, method, progress=False)
    theirs = index.search_many(world.queries, 10, 80, method, progress=False)
    assert abs(world.recall(ours) - world.recall(theirs)) <= 0.03
    assert [hits.calls for hits in ours] == [hits.calls for hits in theirs]
    assert [hits.n_rounds for hits in ours] == [hits.n_rounds for hits in theirs]


def test_a_query_is_answered_alike_alone_awaited_and_among_others(plain: EmbeddedWorld) -> None:
    found, _ = attached(plain)
    many = found.search_many(plain.queries, 5, 40, progress=False)
    assert [found.search(query, 5, 40).ids for query in plain.queries] == [hits.ids for hits in many]
    assert asyncio.run(found.asearch(plain.queries[3], 5, 40)).ids == many[3].ids
    awaited = asyncio.run(found.asearch_many(plain.queries[:4], 5, 40, progress=False))
    assert [hits.ids for hits in awaited] == [hits.ids for hits in many[:4]]


def test_hits_have_the_scorers_own_scores_and_the_whole_item(plain: EmbeddedWorld) -> None:
    hits = attached(plain)[0].search(plain.queries[0], 5, 60)
    for hit in hits:
        place = int(hit.id[1:])
        assert hit.score == pytest.approx(plain.exact_scores[0, place])
        assert hit.item == plain.items[place]
    assert hits.calls == 60
    assert not hits.is_partial
    assert hits.estimated_recall is None


def test_only_what_is_ranked_is_fetched_and_only_what_is_scored_has_its_text_fetched() -> None:
    world = EmbeddedWorld(n_items=9000)
    found, collection = attached(world)
    found.search(world.queries[0], 10, 60)
    assert collection.n_texts == 60
    assert collection.n_fetched < len(world.items) / 2


def test_a_block_of_queries_is_one_request_in_each_round(plain: EmbeddedWorld) -> None:
    found, collection = attached(plain)
    answers = found.search_many(plain.queries, 10, 60, progress=False)
    assert collection.n_requests == answers[0].n_rounds


@pytest.mark.parametrize("filter", [{"lang": "en", "year": {">=": 2010}}, {"not": {"lang": "de"}}])
def test_only_items_that_pass_a_filter_are_found(plain: EmbeddedWorld, filter: dict[str, Any]) -> None:
    passing = np.array(
        [
            item.metadata["lang"] == "en" and ("year" not in filter or item.metadata["year"] >= 2010)
            for item in plain.items
        ]
    )
    answers = attached(plain)[0].search_many(plain.queries, 10, 100, filter=filter, progress=False)
    assert all(passing[int(one[1:])] for hits in answers for one in hits.ids)
    assert plain.recall(answers, passing=passing) >= 0.7


def test_ids_are_a_filter_and_unknown_ones_are_passed_over(plain: EmbeddedWorld) -> None:
    hits = attached(plain)[0].search(plain.queries[0], 10, 50, filter=["i3", "i5", "no such"])
    assert sorted(hits.ids) == ["i3", "i5"]
    assert hits.calls == 2
    assert not attached(plain)[0].search(plain.queries[0], filter=["no such"])


def test_a_budget_that_covers_all_items_gives_the_brute_force_ranking() -> None:
    world = EmbeddedWorld(n_items=80)
    answers = attached(world)[0].search_many(world.queries, 10, 80, progress=False)
    assert world.recall(answers) == 1.0


def test_min_score_and_deadline_hold(plain: EmbeddedWorld) -> None:
    found, _ = attached(plain)
    least = float(np.sort(plain.exact_scores[0])[-5])
    assert all(score >= least for score in found.search(plain.queries[0], 10, 100, min_score=least).scores)
    assert found.search(plain.queries[0], 10, 100, deadline_ms=0).is_partial


def test_a_query_brings_its_own_embedding(plain: EmbeddedWorld) -> None:
    collection = ArrayCollection(plain.items, plain.embeddings)
    found = anncur.attach(collection, plain.scorer)
    query = anncur.Query(plain.queries[0], embedding=plain.rough[0])
    assert found.search(query, 5, 40).ids == attached(plain)[0].search(plain.queries[0], 5, 40).ids
    with pytest.raises(InputError, match="has no embedding"):
        found.search(plain.queries[0], 5, 40)


def test_settings_of_the_posterior_are_taken(plain: EmbeddedWorld) -> None:
    found, _ = attached(plain)
    assert found.search(plain.queries[0], 5, 60, anncur.Posterior(growth=2.0, min_round_size=20)).n_rounds == 3
    assert found.search(plain.queries[0], 5, 60, anncur.Posterior(retrievers=())).calls == 60
    assert found.search(plain.queries[0], 5, 60, max_rounds=2).n_rounds == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_recall": 0.9}, "target_recall needs estimates of recall"),
        ({"explain": True}, "a collection is never listed"),
        ({"method": "anncur"}, "the methods for a collection are posterior and rerank"),
        ({"method": anncur.Rerank("bm25")}, "the methods for a collection are posterior and rerank"),
        ({"budget": 100_000}, "budget must be at most 50,000"),
        ({"filter": np.ones(N_ITEMS, dtype=np.bool_)}, "got a mask"),
        ({"filter": {"colour": "red"}}, "no item has the metadata field 'colour'"),
        ({"k": 0}, "k must be at least 1"),
    ],
)
def test_what_a_collection_can_not_do_is_refused(plain: EmbeddedWorld, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        attached(plain)[0].search(plain.queries[0], **options)


def test_workers_of_another_engine_do_not_search_a_collection(plain: EmbeddedWorld) -> None:
    with pytest.raises(InputError, match="searched by this process, got the engine 'ray'"):
        attached(plain)[0].search_many(plain.queries, engine=anncur.RayEngine(), progress=False)


def test_an_embedding_of_another_width_is_refused(plain: EmbeddedWorld) -> None:
    collection = ArrayCollection(plain.items, plain.embeddings)
    found = anncur.attach(collection, plain.scorer, embed_queries=lambda queries: np.ones((len(queries), WIDTH + 1)))
    with pytest.raises(anncur.RetrieverError, match=f"with {WIDTH} numbers each, got {WIDTH + 1}"):
        found.search(plain.queries[0])


def test_another_model_is_noticed_by_items_that_it_embeds_otherwise(plain: EmbeddedWorld) -> None:
    def same(items: Sequence[anncur.Item]) -> np.ndarray:
        return 3 * plain.embeddings[[int(item.id[1:]) for item in items]]

    attached(plain, embed_items=same)
    with pytest.raises(FingerprintError, match="has other embeddings than embed_items gives, for 4 of 4 items"):
        attached(plain, embed_items=lambda items: np.ones((len(items), WIDTH)))
    with pytest.raises(InputError, match=f"embeddings of {WIDTH} numbers, and embed_items gives 3"):
        attached(plain, embed_items=lambda items: np.ones((len(items), 3)))


class Shrinking(ArrayCollection):
    """Gives fewer items than it counted, unless it is thorough and whole."""

    is_whole = True

    def nearest(self, points: np.ndarray, n_best: int, **options: Any) -> list[FoundRows]:
        found = super().nearest(points, n_best, **options)
        if options.get("is_thorough") and self.is_whole:
            return found
        return [FoundRows(rows.ids[: n_best // 2], rows.embeddings[: n_best // 2]) for rows in found]


def test_a_collection_that_gives_too_few_is_asked_again_and_then_refused(plain: EmbeddedWorld) -> None:
    collection = Shrinking(plain.items, plain.embeddings)
    found = anncur.attach(collection, plain.scorer, embed_queries=plain.embed)
    expected = attached(plain)[0].search(plain.queries[0], 5, 40)
    assert found.search(plain.queries[0], 5, 40).ids == expected.ids
    collection.is_whole = False
    with pytest.raises(DatabaseError, match="if it is being changed, search again") as caught:
        found.search(plain.queries[0], 5, 40)
    assert isinstance(caught.value.kept, anncur.Hits)


def test_what_is_no_collection_is_refused(plain: EmbeddedWorld) -> None:
    with pytest.raises(InputError, match="collection must be named like"):
        anncur.attach(object(), plain.scorer)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="must name a table"):
        anncur.attach("pgvector:postgresql://localhost/shop", plain.scorer)
    with pytest.raises(InputError, match="metric must be one of ip, cosine, l2"):
        attached(plain, metric="dot")


def test_its_repr_names_collection_and_scorer(plain: EmbeddedWorld) -> None:
    assert repr(attached(plain)[0]) == "<anncur.Attached to an array, stored>"
    assert len(plain.queries) == N_QUERIES
