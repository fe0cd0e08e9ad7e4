"""The names by which users open endpoints: `cohere:MODEL`, `tei:http://host:port`, `judge:MODEL@URL`."""

from __future__ import annotations

from anncur.errors import InputError
from anncur.scorers.http.formats import RERANK_FORMATS, VLLM_SCORE, PairEndpoint, RerankEndpoint
from anncur.scorers.http.judge import Judge

_RERANK = {wire.name: wire for wire in RERANK_FORMATS}
_FORMS = {
    "cohere": "cohere:MODEL or cohere:MODEL@http://host:port",
    "jina": "jina:MODEL or jina:MODEL@http://host:port",
    "voyage": "voyage:MODEL or voyage:MODEL@http://host:port",
    "tei": "tei:http://host:port",
    "vllm": "vllm:MODEL@http://host:port",
    "vllm-score": "vllm-score:MODEL@http://host:port",
    "infinity": "infinity:MODEL@http://host:port",
    "judge": "judge:MODEL@http://host:port",
    "judge-grade": "judge-grade:MODEL@http://host:port",
}


def open_endpoint(name: str) -> RerankEndpoint | Judge | None:
    """The scorer that an endpoint's name stands for; None where it isn't the name of an endpoint.

    Keys come from environment variables, and one that is missing is an error right away."""
    format_name, colon, place = name.partition(":")
    if not colon or format_name not in _FORMS:
        return None
    model, url = _parts(format_name, place)
    if format_name in _RERANK:
        return RerankEndpoint(_RERANK[format_name], model, url)
    if format_name == VLLM_SCORE.name:
        return PairEndpoint(VLLM_SCORE, model, url)
    return Judge(model, url, answers="grade" if format_name == "judge-grade" else "logprobs")


def _parts(format_name: str, place: str) -> tuple[str, str]:
    """The model and the URL; the error doesn't show them, because a URL may hold a password."""
    if format_name == "tei":
        return "", _required(place, format_name)
    model, at, url = place.partition("@http")
    if not model.strip() or ("@" in model and not at):
        raise _malformed(format_name)
    has_public_url = format_name in _RERANK and _RERANK[format_name].public_url
    return model, f"http{url}" if at else "" if has_public_url else _required("", format_name)


def _required(url: str, format_name: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise _malformed(format_name)
    return url


def _malformed(format_name: str) -> InputError:
    return InputError(f"this endpoint's name must look like {_FORMS[format_name]}, got something else")
