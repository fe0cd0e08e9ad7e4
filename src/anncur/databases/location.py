"""Where a vector database is, in one line, and what of that line is secret.

    pgvector:postgresql://me@db.example:5432/shop?index=ivf&sslmode=require
    milvus:http://localhost:19530?index=flat
    milvus:./vectors.db

A password may stand in the line. It is kept apart from the moment that the line is read, so that no name, message,
`repr` or file has it. Reads no environment and opens no connection."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self
from urllib.parse import SplitResult, quote, unquote, urlencode, urlsplit

from anncur.errors import InputError

PGVECTOR, MILVUS = "pgvector", "milvus"
KINDS = (PGVECTOR, MILVUS)
HIDDEN = "***"
MILVUS_DATABASE = "db_name"
_PASSWORDS = ("password", "token", "api_key", "apikey")  # options, in small letters
_KEY_PASSWORD = "sslpassword"
_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:\d*)?")
_OPTION = re.compile("[A-Za-z_]{1,30}")


class Secrets(NamedTuple):
    """What is never shown: a password or token, and the password of a client's key file."""

    password: str = ""
    key_password: str = ""


NO_SECRETS = Secrets()


@dataclass(frozen=True)
class Location:
    """A database's kind and address, our own options, and what is secret of all that."""

    kind: str
    url: str
    options: tuple[tuple[str, str], ...] = ()
    secrets: Secrets = field(default=NO_SECRETS, repr=False, compare=False)

    @classmethod
    def parse(cls, name: str, *, options: Iterable[str] = ()) -> Self:
        """Read a line; entries of its query part with one of these names are our own, the others are the driver's."""
        kind, _, rest = name.partition(":")
        if kind not in KINDS or not rest:
            raise InputError(
                "a vector database is named like pgvector:postgresql://user@host/database, milvus:http://host:19530 or "
                f"milvus:./vectors.db, got {kind[:20]!r} before the first colon"
            )
        parts = _split(kind, rest)
        own, drivers, in_query = _sorted_options(parts.query, tuple(options))
        if kind == MILVUS:
            _check_milvus_options(drivers, tuple(options))
        netloc, password = _without_password(parts.netloc)
        address = f"{parts.scheme}://{netloc}{parts.path}" if parts.scheme else parts.path
        url = f"{address}?{_joined(drivers)}" if drivers else address
        return cls(kind, url, tuple(own.items()), in_query._replace(password=password or in_query.password))

    @property
    def name(self) -> str:
        """The line without what is secret: what an index remembers."""
        separator = "&" if "?" in self.url else "?"
        own = separator + _joined(self.options) if self.options else ""
        return f"{self.kind}:{self.url}{own}"

    def option(self, name: str, default: str) -> str:
        """One of our own options."""
        return dict(self.options).get(name, default)

    def without_secrets(self, text: object) -> str:
        """What a driver says, in one line, without passwords."""
        line = " ".join(str(text).split())
        for secret in filter(None, self.secrets):
            for shown in (secret, quote(secret, safe="")):
                line = line.replace(shown, HIDDEN)
        return line

    def __str__(self) -> str:
        return self.name


def is_database(name: object) -> bool:
    """Whether a name is that of a vector database."""
    return isinstance(name, str) and name.partition(":")[0] in KINDS and ":" in name


def read_options(query: str) -> list[tuple[str, str]]:
    """The entries of the query part of an address. A + is a plus, as libpq has it."""
    entries = (entry.partition("=") for entry in query.split("&") if entry)
    return [(unquote(option), unquote(value)) for option, _, value in entries]


def _split(kind: str, address: str) -> SplitResult:
    """The parts of an address; refused, without showing it, where a part of a password may be in the wrong one."""
    try:
        parts = urlsplit(address)
    except ValueError:
        raise _no_url(kind) from None
    is_file = kind == MILVUS and address.startswith((".", "/"))
    if "#" in address or ("@" in parts.path + parts.query and not is_file):
        raise InputError(
            f"the address of a {kind} database has a # or an @ in the wrong place; percent-encode / ? # @ in a "
            "password and in options, as %2F %3F %23 %40"
        )
    _check_scheme(kind, parts)
    if not all(map(_HOST.fullmatch, parts.netloc.rpartition("@")[2].split(","))):  # PostgreSQL may have several
        raise _no_url(kind)
    return parts


def _no_url(kind: str) -> InputError:
    return InputError(f"the address of a {kind} database must be a URL; check its host and port")


def _check_scheme(kind: str, parts: SplitResult) -> None:
    allowed: Mapping[str, tuple[str, ...]] = {
        PGVECTOR: ("postgresql", "postgres"),
        MILVUS: ("http", "https", "tcp", ""),
    }
    if parts.scheme not in allowed[kind]:
        shown = ", ".join(f"{scheme}://…" if scheme else "a file" for scheme in allowed[kind])
        raise InputError(f"the address of a {kind} database must be {shown}, got {parts.scheme[:20]!r}")


def _sorted_options(query: str, names: tuple[str, ...]) -> tuple[dict[str, str], list[tuple[str, str]], Secrets]:
    """Our own options, the driver's, and what of them is secret."""
    own: dict[str, str] = {}
    drivers, secrets = [], NO_SECRETS
    for option, value in read_options(query):
        if option.lower() in _PASSWORDS:
            secrets = secrets._replace(password=value)
        elif option.lower() == _KEY_PASSWORD:
            secrets = secrets._replace(key_password=value)
        elif option in names:
            own[option] = value
        else:
            drivers.append((option, value))
    return own, drivers, secrets


def _check_milvus_options(options: Sequence[tuple[str, str]], names: tuple[str, ...]) -> None:
    """Refuse what neither we nor Milvus know. What isn't like a name isn't shown: it may be a part of a password."""
    for option, _ in options:
        if option != MILVUS_DATABASE:
            shown = repr(option) if _OPTION.fullmatch(option) else "another one"
            raise InputError(
                f"options of a {MILVUS} database must be {', '.join((*names, MILVUS_DATABASE, 'token'))}, got {shown}"
            )


def _without_password(netloc: str) -> tuple[str, str]:
    user, at, hosts = netloc.rpartition("@")
    name, _, password = user.partition(":")
    return f"{name}{at if name else ''}{hosts}", unquote(password)


def _joined(options: Sequence[tuple[str, str]]) -> str:
    return urlencode(options, safe="/", quote_via=quote)
