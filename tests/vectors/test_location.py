"""Where a database is, in one line, and what of it is never shown."""

from __future__ import annotations

import pickle

import pytest

from anncur.databases.location import Location
from anncur.errors import InputError
from anncur.vectors.engines import VectorEngine
from anncur.vectors.naming import OPTIONS

SECRET = "hunter2/%@"
QUOTED = "hunter2%2F%25%40"


@pytest.mark.parametrize(
    "line",
    [
        f"pgvector:postgresql://me:{QUOTED}@host:5432/shop?index=flat&sslmode=require",
        f"pgvector:postgresql://me@host:5432/shop?password={QUOTED}&index=flat&sslmode=require",
        f"milvus:https://me:{QUOTED}@host:19530?index=flat",
        f"milvus:https://host:19530?token={QUOTED}&index=flat",
    ],
)
def test_a_password_is_kept_apart_from_the_name(line: str) -> None:
    location = Location.parse(line, options=OPTIONS)
    assert location.secret == SECRET
    assert location.option("index", "ivf") == "flat"
    for shown in (location.name, str(location), repr(location)):
        assert SECRET not in shown
        assert QUOTED not in shown
    assert Location.parse(location.name, options=OPTIONS) == location


def test_an_engine_has_a_name_without_the_password_and_a_pickle_too() -> None:
    engine = VectorEngine(f"pgvector:postgresql://me:{QUOTED}@host/shop?prefix=mine")
    assert engine.name == "pgvector:postgresql://me@host/shop?prefix=mine"
    assert engine.secret == SECRET
    assert SECRET not in repr(engine)
    assert engine == VectorEngine(engine.name)
    assert SECRET.encode() not in pickle.dumps(VectorEngine(engine.name))


def test_what_a_driver_says_is_shown_without_the_password() -> None:
    location = Location.parse(f"milvus:https://me:{QUOTED}@host:19530")
    assert location.without_secrets(f"bad token me:{SECRET}\nin {QUOTED}") == "bad token me:*** in ***"


def test_the_drivers_own_options_stay_in_the_address() -> None:
    location = Location.parse("pgvector:postgresql:///shop?host=/run/postgres&index=ivf", options=OPTIONS)
    assert location.url == "postgresql:///shop?host=/run/postgres"
    assert location.options == (("index", "ivf"),)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("redis://me:hunter2@host", "is named like"),
        ("pgvector:mysql://me:hunter2@host/shop", r"must be postgresql://…, postgres://…, got 'mysql'"),
        ("milvus:ftp://me:hunter2@host", "must be http://…"),
        ("pgvector:postgresql://me:hunter2@host:port/shop", "check its host and port"),
        ("pgvector:", "is named like"),
    ],
)
def test_a_line_that_names_no_database_is_refused_without_showing_its_password(line: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        Location.parse(line)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pgvector:postgresql://host/shop?index=hnsw", "index must be one of ivf, flat, got 'hnsw'"),
        ("milvus:http://host:19530?prefix=Über", "prefix must be up to 31 small letters"),
        ("pgvecto:postgresql://me:hunter2@host/shop", r"milvus:URL, got 'pgvecto:postgresql'"),
    ],
)
def test_an_engine_with_unknown_options_is_refused_without_showing_its_password(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        VectorEngine(name)
    assert "hunter2" not in str(caught.value)
