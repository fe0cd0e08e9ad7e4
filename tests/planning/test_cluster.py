"""The simulation of a build on a cluster: what must hold whatever the times are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import anncur
from anncur.cli.main import app
from anncur.planning.cluster import Cluster, chunk_times, cluster_cost, plan_cluster, simulate

CHUNKS = st.lists(st.floats(0.01, 100), min_size=1, max_size=40)


def seconds(chunks: Any, cluster: Cluster, n_workers: int, *, load: float = 3.0, seed: int = 0) -> float:
    return simulate(chunks, cluster, n_workers, load_seconds=load, rng=np.random.default_rng(seed))[0]


@given(CHUNKS, st.floats(0, 60))
@settings(deadline=None)
def test_one_worker_that_is_never_lost_takes_all_chunks_after_loading_once(chunks: list[float], load: float) -> None:
    cluster = Cluster()
    overhead = cluster.start_seconds + cluster.process_seconds + len(chunks) * cluster.handing_seconds
    assert seconds(chunks, cluster, 1, load=load) == pytest.approx(overhead + load + sum(chunks))


@given(CHUNKS, st.integers(1, 20))
@settings(deadline=None)
def test_more_workers_are_never_slower_and_never_faster_than_an_equal_share(
    chunks: list[float], n_workers: int
) -> None:
    cluster = Cluster(handing_seconds=0.0)
    before = cluster.start_seconds + cluster.process_seconds + 3.0
    some, more = seconds(chunks, cluster, n_workers), seconds(chunks, cluster, n_workers + 1)
    assert more <= some + 1e-9
    assert more >= before + max(*chunks, sum(chunks) / (n_workers + 1)) - 1e-9


def test_as_many_workers_as_chunks_take_as_long_as_the_longest_chunk() -> None:
    cluster = Cluster(handing_seconds=0.0)
    assert seconds([5.0, 1.0, 9.0], cluster, 3) == pytest.approx(4.0 + 2.0 + 3.0 + 9.0)


def test_one_process_that_hands_out_chunks_limits_any_number_of_workers() -> None:
    assert seconds([0.01] * 1000, Cluster(handing_seconds=0.1), 500) >= 1000 * 0.1


def test_lost_workers_cost_time_and_more_of_them_more() -> None:
    chunks = [30.0] * 200
    rates = [cluster_cost(chunks, Cluster(losses_per_hour=rate), 4, load_seconds=20.0) for rate in (0, 2, 20)]
    assert rates[0].seconds < rates[1].seconds < rates[2].seconds
    assert rates[0].n_lost == 0 < rates[1].n_lost < rates[2].n_lost
    assert rates[0].share_scoring > rates[2].share_scoring


def test_lost_workers_are_as_many_as_their_rate_says() -> None:
    cost = cluster_cost([30.0] * 400, Cluster(losses_per_hour=6, notice_seconds=0), 4, load_seconds=0.0)
    assert cost.n_lost == pytest.approx(6 * 4 * cost.seconds / 3600, rel=0.2)


def test_no_more_than_two_seconds_of_a_lost_chunk_are_done_again() -> None:
    cluster = Cluster(losses_per_hour=60, notice_seconds=0, process_seconds=0, handing_seconds=0)
    total, n_lost = simulate([10_000.0], cluster, 1, load_seconds=0.0, rng=np.random.default_rng(0))
    assert n_lost > 20
    assert total <= 4.0 + 10_000 + 2 * n_lost


def test_a_chunk_that_takes_longer_than_workers_live_still_ends_because_its_parts_are_kept() -> None:
    assert seconds([7200.0], Cluster(losses_per_hour=30), 1) < 4 * 7200


def test_the_price_is_that_of_all_workers_for_the_whole_time() -> None:
    cost = cluster_cost([60.0] * 10, Cluster(price_per_hour=1.5), 5, load_seconds=10.0)
    assert cost.price == pytest.approx(1.5 * 5 * cost.seconds / 3600)


def test_the_best_number_is_the_cheapest_that_meets_the_deadline() -> None:
    chunks = [60.0] * 600  # ten hours
    cluster = Cluster(price_per_hour=1.0, deadline_hours=2.0)
    plan = plan_cluster(chunks, cluster, load_seconds=30.0)
    chosen = next(cost for cost in plan.costs if cost.n_workers == plan.best)
    assert chosen.seconds <= 2 * 3600
    assert all(cost.seconds > 2 * 3600 or cost.price >= chosen.price for cost in plan.costs)
    assert plan_cluster(chunks, Cluster(deadline_hours=0.01), load_seconds=30.0).best is None


def test_without_a_deadline_the_best_number_is_the_most_whose_time_is_mostly_scoring() -> None:
    plan = plan_cluster([60.0] * 600, Cluster(most_workers=600), load_seconds=30.0)
    shares = {cost.n_workers: cost.share_scoring for cost in plan.costs}
    assert plan.best is not None
    assert shares[plan.best] >= 0.8
    assert all(share < 0.8 for n_workers, share in shares.items() if n_workers > plan.best)


def test_no_more_workers_are_considered_than_there_are_chunks() -> None:
    assert [cost.n_workers for cost in plan_cluster([1.0] * 5, Cluster(), load_seconds=0.0).costs] == [1, 2, 3, 4, 5]


def test_chunk_times_add_up_to_the_measured_pace_and_differ_less_with_more_requests() -> None:
    samples = np.random.default_rng(0).gamma(2.0, 0.05, size=500)
    few, many = (chunk_times(10_050, 100, samples.tolist(), requests_per_chunk=n) for n in (1, 50))
    assert len(many) == 101
    assert sum(many) == pytest.approx(10_050 * samples.mean(), rel=0.02)
    assert many[-1] == pytest.approx(many[0] / 2, rel=0.5)
    assert np.std(many[:-1]) < np.std(few[:-1]) / 4


@pytest.mark.parametrize(
    "wrong",
    [{"most_workers": 0}, {"price_per_hour": -1}, {"losses_per_hour": -1}, {"deadline_hours": 0}, {"load_seconds": -1}],
)
def test_a_cluster_that_there_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(anncur.InputError, match=next(iter(wrong))):
        Cluster(**wrong)


def test_the_command_shows_what_more_workers_take_and_the_best_number(tmp_path: Path) -> None:
    corpus, queries = tmp_path / "corpus.jsonl", tmp_path / "queries.txt"
    corpus.write_text("".join(f'{{"id": "i{n}", "text": "item {n} is a thing"}}\n' for n in range(60)))
    queries.write_text("\n".join(f"query {n}" for n in range(20)))
    command = [
        "plan",
        str(corpus),
        "--queries",
        str(queries),
        "--scorer",
        "misbehaving:hash_pairs",
        "--retriever",
        "bm25",
    ]
    shown = CliRunner().invoke(app, [*command, "--cluster", "--price-per-hour", "2", "--most-workers", "4"])
    assert shown.exit_code == 0, shown.output
    assert "On a cluster" in shown.output
    assert "anncur build --engine ray --workers" in shown.output
    refused = CliRunner().invoke(app, [*command, "--price-per-hour", "2"])
    assert refused.exit_code == 1
    assert "goes with --cluster" in refused.output


@pytest.mark.parametrize(
    ("chunks", "load", "said"),
    [
        ([], 1.0, "chunk_seconds must hold the seconds of one chunk at least"),
        ([1.0, -1.0], 1.0, "chunk_seconds must be"),
        ([float("nan")], 1.0, "chunk_seconds must be"),
        ([1.0], float("inf"), "load_seconds must be"),
    ],
)
def test_times_that_are_none_are_refused(chunks: list[float], load: float, said: str) -> None:
    with pytest.raises(anncur.InputError, match=said):
        plan_cluster(chunks, Cluster(), load_seconds=load)


def test_a_cluster_whose_workers_are_lost_before_they_have_loaded_is_refused() -> None:
    with pytest.raises(anncur.InputError, match=r"lost every 6\.0 seconds, and it takes 124 until"):
        plan_cluster([10.0] * 20, Cluster(losses_per_hour=600), load_seconds=120)
    plan = plan_cluster([10.0] * 20, Cluster(losses_per_hour=100), load_seconds=120)
    assert all(cost.seconds < 1e6 for cost in plan.costs)
