"""The methods by the names that users call them."""

from __future__ import annotations

from anncur.errors import InputError
from anncur.search.adacur import Adacur
from anncur.search.axn import Axn
from anncur.search.base import Policy
from anncur.search.exhaustive import Exhaustive
from anncur.search.one_shot import OneShot
from anncur.search.posterior import Posterior
from anncur.search.rerank import Rerank

DEFAULT_METHOD = Posterior.name

METHODS: dict[str, Policy] = {
    policy.name: policy for policy in (Posterior(), OneShot(), Adacur(), Axn(), Rerank(), Exhaustive())
}


def as_policy(method: str | Policy) -> Policy:
    """Take a method by name, or a policy with settings of its own such as `OneShot(n_anchor_items=100)`."""
    if isinstance(method, str) and method in METHODS:
        return METHODS[method]
    if isinstance(method, (str, type)) or not isinstance(method, Policy):
        raise InputError(f"method must be one of {', '.join(METHODS)}, or a policy object, got {method!r}")
    return method
