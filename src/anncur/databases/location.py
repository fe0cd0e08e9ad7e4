"""Where a vector database is, in one line, and what of that line is secret.

    pgvector:postgresql://me@db.example:5432/shop?index=ivf&sslmode=require
    milvus:http://localhost:19530?index=flat
    milvus:./vectors.db

A password may stand in the line. It is kept apart from the moment that the line is read, so that no name, message,
`repr` or file has it. Reads no environment and opens no connection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from anncur.errors import InputError

PGVECTOR, MILVUS = "pgvector", "milvus"
KINDS = (PGVECTOR, MILVUS)
HIDDEN = "***"
_SECRET_OPTIONS = ("password", "token")


@dataclass(frozen=True)
class Location:
    """A database's kind and address, and our own options; `secret` is a password or token, which is never shown."""

    kind: str
    url: str
    options: tuple[tuple[str, str], ...] = ()
    secret: str = field(default="", repr=False, compare=False)

    @classmethod
    def parse(cls, name: str, *, options: Iterable[str] = ()) -> Self:
        """Read a line; entries of its query part with one of these names are our own, the others are the driver's."""
        kind, _, rest = name.partition(":")
        if kind not in KINDS or not rest:
            raise InputError(
                "a vector database is named like pgvector:postgresql://user@host/database, milvus:http://host:19530 or "
                f"milvus:./vectors.db, got {kind[:20]!r} before the first colon"
            )
        try:
            parts = urlsplit(rest)
            _ = parts.port
        except ValueError:
            raise InputError(f"the address of a {kind} database must be a URL; check its host and port") from None
        _check_scheme(kind, parts)
        own, drivers, secret = _sorted_options(parts.query, tuple(options))
        netloc, password = _without_password(parts.netloc)
        address = f"{parts.scheme}://{netloc}{parts.path}" if parts.scheme else parts.path
        url = f"{address}?{urlencode(drivers, safe='/')}" if drivers else address
        return cls(kind, url, tuple(own.items()), password or secret)

    @property
    def name(self) -> str:
        """The line without what is secret: what an index remembers."""
        separator = "&" if "?" in self.url else "?"
        own = separator + urlencode(self.options) if self.options else ""
        return f"{self.kind}:{self.url}{own}"

    def option(self, name: str, default: str) -> str:
        """One of our own options."""
        return dict(self.options).get(name, default)

    def without_secrets(self, text: object) -> str:
        """What a driver says, in one line, without the password."""
        line = " ".join(str(text).split())
        for secret in {self.secret, quote(self.secret, safe="")} - {""}:
            line = line.replace(secret, HIDDEN)
        return line

    def __str__(self) -> str:
        return self.name


def is_database(name: object) -> bool:
    """Whether a name is that of a vector database."""
    return isinstance(name, str) and name.partition(":")[0] in KINDS and ":" in name


def _check_scheme(kind: str, parts: SplitResult) -> None:
    allowed: Mapping[str, tuple[str, ...]] = {
        PGVECTOR: ("postgresql", "postgres"),
        MILVUS: ("http", "https", "tcp", ""),
    }
    if parts.scheme not in allowed[kind]:
        shown = ", ".join(f"{scheme}://…" if scheme else "a file" for scheme in allowed[kind])
        raise InputError(f"the address of a {kind} database must be {shown}, got {parts.scheme[:20]!r}")


def _sorted_options(query: str, names: tuple[str, ...]) -> tuple[dict[str, str], list[tuple[str, str]], str]:
    """Our own options, the driver's, and what of them is secret."""
    own: dict[str, str] = {}
    drivers, secret = [], ""
    for option, value in parse_qsl(query, keep_blank_values=True):
        if option in _SECRET_OPTIONS:
            secret = value
        elif option in names:
            own[option] = value
        else:
            drivers.append((option, value))
    return own, drivers, secret


def _without_password(netloc: str) -> tuple[str, str]:
    user, at, hosts = netloc.rpartition("@")
    name, _, password = user.partition(":")
    return f"{name}{at if name else ''}{hosts}", unquote(password)
