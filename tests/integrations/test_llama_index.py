"""An index behind LlamaIndex's retrievers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import anncur
from boxes import ITEMS, NEAREST, Pencils, distance_scorer

pytest.importorskip("llama_index.core", reason="needs llama-index-core; `make test-integrations` installs it")

from llama_index.core import QueryBundle
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import MetadataMode, NodeWithScore
from llama_index.core.vector_stores import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters
from llama_index.core.vector_stores.utils import build_metadata_filter_fn

from anncur.integrations.llama_index import AnncurRetriever


def ids(nodes: list[NodeWithScore]) -> list[str]:
    return [node.node_id for node in nodes]


def test_nodes_are_the_hits_with_exact_scores(index: anncur.Index) -> None:
    nodes = AnncurRetriever(index, k=3, budget=60).retrieve("42 pencils")
    assert ids(nodes) == NEAREST
    assert [node.score for node in nodes] == [0.0, -1.0, -1.0]
    assert nodes[0].text == "a box of 42 pencils"
    assert nodes[0].metadata["anncur"]["calls"] == 60
    assert nodes[0].metadata["anncur"]["round"] >= 1


def test_nodes_have_the_highest_score_first_also_where_the_scorer_likes_low_ones() -> None:
    nodes = AnncurRetriever(anncur.Index.build(ITEMS, distance_scorer()), k=3, budget=200).retrieve("42 pencils")
    assert [(node.node_id, node.score) for node in nodes] == list(zip(NEAREST, [0, -1, -1], strict=True))


def test_models_are_shown_the_items_metadata_and_not_what_the_search_cost(index: anncur.Index) -> None:
    node = AnncurRetriever(index, k=1).retrieve(QueryBundle("42 pencils"))[0].node
    for mode in (MetadataMode.LLM, MetadataMode.EMBED):
        shown = node.get_content(mode)
        assert "title: Box 42" in shown
        assert "size: 42" in shown
        assert "anncur" not in shown


def test_an_awaited_search_runs_the_scorer_on_the_callers_event_loop(index: anncur.Index, scorer: Pencils) -> None:
    retriever = AnncurRetriever(index, k=3, budget=60)

    async def ask() -> tuple[list[NodeWithScore], asyncio.AbstractEventLoop]:
        scorer.loops.clear()
        return await retriever.aretrieve("42 pencils"), asyncio.get_running_loop()

    nodes, loop = asyncio.run(ask())
    assert ids(nodes) == NEAREST
    assert set(scorer.loops) == {loop}


def test_a_query_engine_answers_from_its_nodes(folder: Path) -> None:
    engine = RetrieverQueryEngine.from_args(AnncurRetriever(folder, k=3), llm=MockLLM())  # which repeats its prompt
    answer = engine.query("42 pencils")
    assert ids(answer.source_nodes) == NEAREST
    assert "a box of 42 pencils" in str(answer)


@pytest.mark.parametrize("condition", list(FilterCondition))
def test_filters_of_llama_index_pass_what_llama_index_passes(index: anncur.Index, condition: FilterCondition) -> None:
    filters = MetadataFilters(
        filters=[
            MetadataFilter(key="size", operator=FilterOperator.GT, value=40),
            MetadataFilter(key="size", operator=FilterOperator.IN, value=[7, 50]),
        ],
        condition=condition,
    )
    metadata = {item.id: item.metadata for item in ITEMS}
    passes = build_metadata_filter_fn(metadata.__getitem__, filters)
    nodes = AnncurRetriever(index, k=len(ITEMS), method="exhaustive", filters=filters).retrieve("42 pencils")
    assert set(ids(nodes)) == {item_id for item_id in metadata if passes(item_id)}
    with pytest.raises(anncur.InputError, match="pass one of them"):
        AnncurRetriever(index, filter={"size": 3}, filters=filters)
