"""The names that open endpoints, and the keys that they need."""

from __future__ import annotations

import sys

import pytest

from anncur.errors import InputError
from anncur.scorers.http import open_endpoint
from anncur.scorers.http.formats import PairEndpoint, RerankEndpoint
from anncur.scorers.http.judge import Judge
from endpoints import SPOKEN

PUBLIC = {
    "cohere": ("https://api.cohere.com", "COHERE_API_KEY"),
    "jina": ("https://api.jina.ai", "JINA_API_KEY"),
    "voyage": ("https://api.voyageai.com", "VOYAGE_API_KEY"),
}


@pytest.mark.parametrize(
    "name", ["package.module:scorer", "builtin", "org/model", "", "a:b", "Cohere:model", "https://x"]
)
def test_other_names_are_not_ours(name: str) -> None:
    assert open_endpoint(name) is None


@pytest.mark.parametrize("name", list(PUBLIC))
def test_a_public_endpoint_needs_a_model_and_a_key(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url, variable = PUBLIC[name]
    with pytest.raises(InputError, match=rf"{url} needs a key, .*{variable}"):
        open_endpoint(f"{name}:model-1")
    monkeypatch.setenv(variable, "some-key-1")
    assert repr(open_endpoint(f"{name}:model-1")) == f"RerankEndpoint({name!r}, 'model-1', {url!r})"


def test_coheres_key_has_two_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CO_API_KEY", "some-key-1")
    assert isinstance(open_endpoint("cohere:rerank-v3.5"), RerankEndpoint)


def test_the_classes_of_the_names() -> None:
    kinds = {name: type(open_endpoint(spoken.name.format(url="http://host:1"))) for name, spoken in SPOKEN.items()}
    assert kinds == dict.fromkeys(SPOKEN, RerankEndpoint) | {"vllm-score": PairEndpoint}
    assert isinstance(open_endpoint("judge:org/model:7b@http://localhost:1/v1"), Judge)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("cohere:", "cohere:MODEL"),
        ("jina:@http://host", "jina:MODEL"),
        ("voyage:model@host:80", "voyage:MODEL@http://"),
        ("tei:", "tei:http://host:port"),
        ("tei:localhost:8080", "tei:http://host:port"),
        ("vllm:model", "vllm:MODEL@http://"),
        ("vllm:http://host:80", "vllm:MODEL@http://"),
        ("vllm-score:model@", "vllm-score:MODEL@http://"),
        ("infinity:model@ftp://host", "infinity:MODEL@http://"),
        ("judge:model", "judge:MODEL@http://"),
        ("judge-grade: @http://localhost", "judge-grade:MODEL@http://"),
    ],
)
def test_a_name_without_its_parts_is_refused_with_the_right_form(name: str, form: str) -> None:
    with pytest.raises(InputError, match="must look like") as caught:
        open_endpoint(name)
    assert form in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://user:pass-word@host:1",
        "https://pass-word@host",
        "http://host:1/?key=pass-word",
        "http://host#pass-word",
        "http://",
        "http://host:99999",
        "http://host name",
        "http://ho\nst",
        "http://[::1",
    ],
)
def test_a_url_that_is_not_plain_is_refused_without_being_shown(url: str) -> None:
    for name in ("tei:", "vllm:model@", "judge:model@"):
        with pytest.raises(InputError, match="URL must") as caught:
            open_endpoint(name + url)
        assert "pass-word" not in str(caught.value)


@pytest.mark.parametrize("key", ["schlüssel-1234", "two\nlines-1234", "nul\x7f-1234"])
def test_a_key_that_no_header_can_carry_is_refused_without_being_shown(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JINA_API_KEY", key)
    with pytest.raises(InputError, match="JINA_API_KEY must be plain ASCII") as caught:
        open_endpoint("jina:model")
    assert key not in str(caught.value)


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1:1", "127.8.8.8", "[::1]:80"])
def test_a_judge_on_this_machine_needs_no_key(host: str) -> None:
    assert isinstance(open_endpoint(f"judge:model@http://{host}"), Judge)


@pytest.mark.parametrize("host", ["api.openai.com", "10.0.0.1", "localhost.evil.com", "[2001:db8::1]"])
def test_a_judge_elsewhere_needs_one(host: str) -> None:
    with pytest.raises(InputError, match="OPENAI_API_KEY"):
        open_endpoint(f"judge:model@https://{host}")


def test_without_httpx_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    assert open_endpoint("package.module:scorer") is None
    with pytest.raises(InputError, match=r"pip install 'anncur\[http\]'"):
        open_endpoint("tei:http://localhost:1")
