"""Connections to databases: bounded, retried where that helps, and explained where it doesn't."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Any

import pytest

from anncur.databases import postgres as client
from anncur.databases import retrying
from anncur.databases.location import Location
from anncur.databases.milvus import Milvus
from anncur.databases.postgres import Postgres
from anncur.errors import DatabaseError, InputError
from servers import LiteFolder, PostgresServer, needs_milvus_lite

UNUSED = "milvus:http://127.0.0.1:9"


def location_of(server: PostgresServer | LiteFolder) -> Location:
    return Location.parse(server.location)


def one(connection: Any) -> Any:
    return connection.execute("SELECT 1").fetchone()


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries follow at once."""
    monkeypatch.setattr(retrying, "PAUSES", (0.0, 0.0))


@pytest.mark.processes
def test_a_statement_that_takes_too_long_is_ended_by_the_server(postgres: PostgresServer) -> None:
    database = Postgres(location_of(postgres), timeout=0.2)
    with pytest.raises(DatabaseError, match="took longer than it may"):
        database.run(lambda connection: connection.execute("SELECT pg_sleep(20)"))
    assert database.run(one) == (1,)


@pytest.mark.processes
def test_statements_that_each_take_less_than_the_timeout_are_not_ended(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "GRACE", 0.1)
    database = Postgres(location_of(postgres), timeout=0.5)

    def several(connection: Any) -> Any:
        with connection.pipeline():
            for _ in range(4):
                connection.execute("SELECT pg_sleep(0.3)")
        return one(connection)

    assert database.run(several) == (1,)
    assert database.n_lost == 0


@pytest.mark.processes
def test_a_server_that_hangs_is_given_up_whatever_it_is_asked_for(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "GRACE", 0.5)
    monkeypatch.setattr(client, "LOOK_SECONDS", 0.5)
    monkeypatch.setitem(client.KEEPALIVE, "connect_timeout", 2)
    database = Postgres(location_of(postgres), timeout=0.5)
    failures: list[BaseException] = []

    def ask(timeout: float) -> None:
        try:
            database.run(one, timeout=timeout)
        except DatabaseError as error:
            failures.append(error)

    threads = [threading.Thread(target=ask, args=[timeout], daemon=True) for timeout in (0.5, 0)]
    connections = [database._connect() for _ in threads]
    database._idle += connections
    with postgres.hanging():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in threads)
        with pytest.raises(DatabaseError, match="can't be reached"):  # at once: five attempts would take ten seconds
            database.run(one)
    assert ["hangs" in str(failure) for failure in failures] == [True, True]
    assert database.run(one) == (1,)


@pytest.mark.processes
def test_a_server_that_hangs_right_after_it_took_a_connection_is_given_up(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "GRACE", 0.5)
    monkeypatch.setitem(client.KEEPALIVE, "connect_timeout", 2)
    database, failures = Postgres(location_of(postgres), timeout=0.5), list[str]()
    check = Postgres._check_extension
    with contextlib.ExitStack() as meanwhile:

        def hang_first(asked: Postgres, connection: Any) -> None:
            meanwhile.enter_context(postgres.hanging())
            check(asked, connection)

        def ask() -> None:
            try:
                database.run(one)
            except DatabaseError as error:
                failures.append(str(error))

        monkeypatch.setattr(Postgres, "_check_extension", hang_first)
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(30)
        assert not thread.is_alive()
    assert "hangs" in failures[0]


@pytest.mark.processes
def test_a_connection_that_was_lost_is_made_again_and_counted(postgres: PostgresServer) -> None:
    database = Postgres(location_of(postgres))
    database.run(one)
    with postgres.connect() as other:
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'anncur' "
            "AND pid <> pg_backend_pid()"
        )
    assert database.run(one) == (1,)
    assert database.n_lost == 1


@pytest.mark.processes
def test_a_database_that_is_not_there_is_not_tried_again(postgres: PostgresServer) -> None:
    database = Postgres(Location.parse(postgres.location.replace("/postgres?", "/nowhere?")))
    with pytest.raises(DatabaseError, match=r"takes no connection; check its name, .* \"nowhere\" does not exist"):
        database.run(one)
    assert database.n_lost == 0


@pytest.mark.parametrize(
    ("said", "may_pass"),
    [
        ('connection failed: FATAL:  password authentication failed for user "me"', False),
        ("connection failed: fe_sendauth: no password supplied", False),
        ("connection failed: FATAL:  the database system is starting up", True),
        ("connection failed: FATAL:  sorry, too many clients already", True),
        ("connection refused", True),
        ("server closed the connection unexpectedly", True),
    ],
)
def test_a_connection_is_tried_again_where_that_may_help(said: str, may_pass: bool) -> None:
    psycopg = pytest.importorskip("psycopg", reason="the package psycopg is missing")
    assert client._failure_of(psycopg.OperationalError(said)).may_pass == may_pass


@pytest.mark.processes
def test_options_of_the_driver_reach_the_server(postgres: PostgresServer) -> None:
    separator = "&" if "?" in postgres.location else "?"
    location = Location.parse(f"{postgres.location}{separator}options=-c%20search_path%3Dpublic,pg_catalog")
    assert Postgres(location).run(lambda one: one.execute("SHOW search_path").fetchone()) == ("public,pg_catalog",)


@pytest.mark.usefixtures("no_pauses")
def test_a_milvus_that_is_down_is_tried_again() -> None:
    needs_milvus_lite()
    database = Milvus(Location.parse(UNUSED), timeout=0.2)
    with pytest.raises(DatabaseError, match=r"can't be reached; is it running\?"):
        database.run(lambda asked: asked.list_collections())
    assert database.n_lost == 3


@pytest.mark.parametrize(
    ("code", "message", "what"),
    [
        (9, "quota exceeded", retrying.FULL),
        (65535, "cannot parse expression: memory == 'timeout', error: closed", retrying.REFUSED),
        (1100, "field timeout not exist: memory, not available", retrying.REFUSED),
        (65535, "fail to search: node offline", retrying.UNREACHABLE),
        (2, "", retrying.UNREACHABLE),
    ],
)
def test_an_error_of_milvus_is_told_by_its_code_not_by_words_of_a_filter(code: int, message: str, what: str) -> None:
    pytest.importorskip("pymilvus", reason="the package pymilvus is missing")
    from pymilvus.exceptions import MilvusException

    from anncur.databases.milvus import _failure_of

    assert _failure_of(MilvusException(code, message)).what == what


@pytest.mark.slow
def test_an_error_of_the_callers_own_is_left_as_it_is(milvus_lite: LiteFolder) -> None:
    def fail(_: Any) -> None:
        raise ValueError("of our own")

    with pytest.raises(ValueError, match="of our own"):
        Milvus(location_of(milvus_lite)).run(fail)


@pytest.mark.slow
@pytest.mark.usefixtures("no_pauses")
def test_a_client_that_lost_its_server_is_closed(milvus_lite: LiteFolder) -> None:
    from pymilvus import MilvusClient
    from pymilvus.exceptions import MilvusException

    database, used = Milvus(location_of(milvus_lite)), list[MilvusClient]()

    def lose_once(asked: MilvusClient) -> int:
        used.append(asked)
        if len(used) == 1:
            raise MilvusException(2, "gone")
        return len(asked.list_collections())

    database.run(lose_once)
    assert used[0] is not used[1]
    assert used[0]._handler is None
    assert database.n_lost == 1


@pytest.mark.slow
def test_the_log_of_pymilvus_is_silent_for_our_requests_alone(
    milvus_lite: LiteFolder, caplog: pytest.LogCaptureFixture
) -> None:
    from pymilvus import MilvusClient

    logger = logging.getLogger("pymilvus")
    logger.addHandler(caplog.handler)
    try:
        with pytest.raises(DatabaseError, match="refused"):
            Milvus(location_of(milvus_lite)).run(lambda asked: asked.query("nothing", filter="a > 1"))
        assert not caplog.records
        with contextlib.suppress(Exception):
            MilvusClient(str(milvus_lite.path)).query("nothing", filter="a > 1")
        assert caplog.records
    finally:
        logger.removeHandler(caplog.handler)


def test_a_database_of_milvus_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pymilvus = pytest.importorskip("pymilvus", reason="the package pymilvus is missing")
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(pymilvus, "MilvusClient", lambda **arguments: given.append(arguments))
    Milvus(Location.parse("milvus:http://me:word@host:19530?db_name=shop&token=")).run(lambda _: None)
    assert (given[0]["uri"], given[0]["token"], given[0]["db_name"]) == ("http://host:19530", "me:word", "shop")


@pytest.mark.slow
def test_connections_are_not_pickled(milvus_lite: LiteFolder) -> None:
    with pytest.raises(InputError, match="can't be pickled"):
        Milvus(location_of(milvus_lite)).__reduce__()
