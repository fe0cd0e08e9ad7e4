"""Endpoints as scorers: re-rankers over HTTP and language models as judges, by the names that users type."""

from anncur.scorers.http.names import open_endpoint

__all__ = ["open_endpoint"]
