"""What all routes share: the indexes, the settings, the queue, the counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from anncur.items import Query
from anncur.service.admission import Admission
from anncur.service.edge import Exchange
from anncur.service.limiting import SlowdownLimit
from anncur.service.metrics import Metrics
from anncur.service.served import ServedIndexes
from anncur.service.settings import ServiceSettings

CHECKS_AT_ONCE = 1  # exhaustive ones, which keep a scorer busy for long
MOST_WRITES_WAITING = 8


@dataclass
class Service:
    """One service, as long as it runs."""

    indexes: ServedIndexes
    settings: ServiceSettings
    metrics: Metrics = field(default_factory=Metrics)
    is_draining: bool = False

    def __post_init__(self) -> None:
        places = (self.settings.max_running, self.settings.max_waiting)
        slowdown = self.settings.max_slowdown
        self.searches = Admission(*places, SlowdownLimit(*places, slowdown) if slowdown else None)
        self.checks = Admission(CHECKS_AT_ONCE, 0)
        self.writes = Admission(1, MOST_WRITES_WAITING)
        self.metrics.watch(self.searches, self.indexes)

    def texts(self, queries: Sequence[Query]) -> dict[str, Any]:
        """The texts of queries, for the log, where these are wanted there."""
        return {"texts": [query.text for query in queries]} if self.settings.log_texts else {}


def service_of(request: Request) -> Service:
    """The service that a request came to."""
    service: Service = request.app.state.service
    return service


def exchange_of(request: Request) -> Exchange:
    """What is written down of a request."""
    exchange: Exchange = request.scope["state"]["exchange"]
    return exchange
