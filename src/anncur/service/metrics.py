"""What Prometheus reads: requests, searches, pairs, the queue, and versions of indexes.

A registry for each application, so that several may live in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from anncur.ranking import Hits

if TYPE_CHECKING:
    from anncur.service.admission import Admission
    from anncur.service.served import ServedIndexes

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
PAIRS = (10, 25, 50, 100, 200, 500, 1000, 2500, 10_000)
MEDIA_TYPE = CONTENT_TYPE_LATEST
METHODS = {"GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH"}


class Metrics:
    """Counters of one application."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ["method", "route", "status"]
        self._requests = Counter("anncur_requests", "Requests.", labels, registry=self.registry)
        self._seconds = Histogram(
            "anncur_request_seconds", "Time of a request.", ["route"], buckets=SECONDS, registry=self.registry
        )
        searched = ["index", "method"]
        self._pairs = Histogram(
            "anncur_search_pairs", "Pairs of a search.", searched, buckets=PAIRS, registry=self.registry
        )
        self._partial = Counter("anncur_partial_answers", "Answers cut short.", ["index"], registry=self.registry)
        self._unscored = Counter(
            "anncur_unscored_answers", "Answers without scores.", ["index"], registry=self.registry
        )
        self._waiting = Histogram(
            "anncur_waiting_seconds", "Time in the queue.", buckets=SECONDS, registry=self.registry
        )

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(method if method in METHODS else "other", route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def waited(self, seconds: float) -> None:
        """Count the time that a search waited for its turn."""
        self._waiting.observe(seconds)

    def searched(self, index: str, hits: Hits) -> None:
        """Count a search."""
        self._pairs.labels(index, hits.method).observe(hits.calls)
        if hits.is_partial:
            self._partial.labels(index).inc()

    def unscored(self, index: str) -> None:
        """Count an answer of first guesses."""
        self._unscored.labels(index).inc()

    def watch(self, admission: Admission, indexes: ServedIndexes) -> None:
        """Report what these are like when it is asked for."""
        limit = admission.limit
        for name, text, read in (
            ("anncur_running_searches", "Searches that run now.", lambda: admission.n_running),
            ("anncur_waiting_searches", "Searches in the queue.", lambda: admission.n_waiting),
            ("anncur_search_places", "Searches that may run at once.", lambda: admission.places),
            (
                "anncur_search_slowdown",
                "How many times longer than alone the latest searches ran, their 90th percentile; 0 if unknown.",
                lambda: 0.0 if limit is None else limit.slowdown,
            ),
            (
                "anncur_pressed",
                "1 while requests are more than can be answered.",
                lambda: limit is not None and limit.is_pressed,
            ),
        ):
            _gauge(name, text, read, self.registry)
        self.registry.register(_OfIndexes(indexes))

    def exposition(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self.registry)


def _gauge(name: str, text: str, read: Callable[[], float], registry: CollectorRegistry) -> None:
    Gauge(name, text, registry=registry).set_function(read)


class _OfIndexes(Collector):
    """Version and size of each index, and what its scorer was asked for."""

    def __init__(self, indexes: ServedIndexes) -> None:
        self._indexes = indexes

    def collect(self) -> Iterable[Metric]:
        versions = GaugeMetricFamily("anncur_index_version", "Version that is searched.", labels=["index"])
        sizes = GaugeMetricFamily("anncur_index_items", "Items of it.", labels=["index"])
        pairs = CounterMetricFamily("anncur_scorer_pairs", "Pairs that the scorer was asked for.", labels=["index"])
        for name, index in self._indexes.items():
            version, n_items = index.reader.loaded
            versions.add_metric([name], version)
            sizes.add_metric([name], n_items)
            pairs.add_metric([name], index.scorer.calls_made)
        return versions, sizes, pairs
