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
        f"milvus:https://host:19530?api_key={QUOTED}&index=flat",
        f"milvus:https://host:19530?Password={QUOTED}&index=flat",
    ],
)
def test_a_password_is_kept_apart_from_the_name(line: str) -> None:
    location = Location.parse(line, options=OPTIONS)
    assert location.secrets.password == SECRET
    assert location.option("index", "ivf") == "flat"
    for shown in (location.name, str(location), repr(location)):
        assert SECRET not in shown
        assert QUOTED not in shown
    assert Location.parse(location.name, options=OPTIONS) == location


def test_the_password_of_a_key_file_is_kept_apart_too() -> None:
    location = Location.parse(f"pgvector:postgresql://me:other@host/shop?sslpassword={QUOTED}&sslkey=/me.key")
    assert location.secrets == ("other", SECRET)
    assert location.url == "postgresql://me@host/shop?sslkey=/me.key"
    assert location.without_secrets(f"{SECRET} other") == "*** ***"


@pytest.mark.parametrize("sign", ["/", "?", "#", "/?", "?x=", "#x"])
@pytest.mark.parametrize("address", ["pgvector:postgresql://me:{}@host/shop", "milvus:http://me:{}@host:19530"])
def test_a_password_with_signs_of_a_url_is_refused_without_showing_it(address: str, sign: str) -> None:
    with pytest.raises(InputError, match="percent-encode / \\? # @ in a password") as caught:
        Location.parse(address.format(f"12{sign}hunter2"))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("option", ["timout=3", "hunter2/=1", "user=hunter2"])
def test_an_option_that_milvus_does_not_have_is_refused(option: str) -> None:
    with pytest.raises(InputError, match="options of a milvus database must be index, prefix, timeout") as caught:
        Location.parse(f"milvus:http://host:19530?{option}", options=OPTIONS)
    assert "hunter2" not in str(caught.value)


def test_a_file_of_milvus_may_have_an_at_in_its_path() -> None:
    assert Location.parse("milvus:/home/me@work/vectors.db").url == "/home/me@work/vectors.db"


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://me@one:5432,two:5433/shop?target_session_attrs=primary",
        "postgresql://[::1]:5432/shop",
        "postgresql:///shop?host=/run/postgres",
    ],
)
def test_addresses_that_libpq_takes_are_taken(address: str) -> None:
    assert Location.parse(f"pgvector:{address}").url == address


def test_options_are_encoded_as_libpq_decodes_them() -> None:
    location = Location.parse("pgvector:postgresql://host/shop?options=-c%20search_path%3Da+b")
    assert location.url == "postgresql://host/shop?options=-c%20search_path%3Da%2Bb"


def test_an_engine_has_a_name_without_the_password_and_a_pickle_too() -> None:
    engine = VectorEngine(f"pgvector:postgresql://me:{QUOTED}@host/shop?prefix=mine")
    assert engine.name == "pgvector:postgresql://me@host/shop?prefix=mine"
    assert engine.secrets.password == SECRET
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
        ("pgvector:postgresql://me:hunter2", "check its host and port"),
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
