"""Requests that schemathesis makes of the interface's own description: never a 5xx, and only what is documented.

Some hundred of them here; ANNCUR_FUZZ_CASES=6000 and more in the full run. Valid requests may still be refused, by
rules that a schema can't say: names of indexes, fields of metadata, a budget beside a target of recall."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from schemathesis import Config, GenerationMode
from schemathesis.checks import CHECKS

from service_worlds import RunningService, running

pytestmark = [pytest.mark.processes, pytest.mark.slow]

N_CASES = int(os.environ.get("ANNCUR_FUZZ_CASES", "340"))
CHECKED = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
]
REFUSED = {"checks": {"negative_data_rejection": {"expected-statuses": ["4xx"]}}}  # 413 for very many documents, too


@pytest.fixture(scope="module")
def service(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("fuzz")
    shutil.copytree(built, folder / "things.anncur")
    with running(folder / "things.anncur", folder / "log") as found:
        yield found


def test_every_request_is_answered_as_it_is_documented(service: RunningService) -> None:
    schema = schemathesis.openapi.from_url(f"{service.url}/openapi.json", config=Config.from_dict(REFUSED))
    operations: list[Any] = [found.ok() for found in schema.get_all_operations()]  # type: ignore[union-attr]
    varied = [each for each in operations if each.body or each.query or each.path_parameters]
    fixed = [each for each in operations if each not in varied]
    modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    n_each = -(-N_CASES // (len(varied) * len(modes)))
    with requests.Session() as session:
        n_sent = sum(_send(each.as_strategy(), session, service, 3) for each in fixed)
        for operation in varied:
            for mode in modes:
                n_sent += _send(operation.as_strategy(generation_mode=mode), session, service, n_each)
        memory = service.resident_mb()
        for _ in range(200):
            session.post(f"{service.url}/v1/search", json={"query": "bird"}, headers=service.headers)
    assert n_sent >= N_CASES
    assert service.resident_mb() < memory + 30
    assert not [line for line in service.log_lines() if line.get("status", 0) >= 500 or "traceback" in line]


def _send(strategy: Any, session: requests.Session, service: RunningService, n_cases: int) -> int:
    n_sent, checks = 0, CHECKS.get_by_names(CHECKED)

    @settings(
        max_examples=n_cases,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def send(case: Any) -> None:
        nonlocal n_sent
        n_sent += 1
        case.call_and_validate(session=session, headers=service.headers, checks=checks, timeout=60)

    send()
    return n_sent
