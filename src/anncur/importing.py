"""Finds scorers and retrievers that users name as `package.module:name`."""

from __future__ import annotations

import importlib

from anncur.errors import InputError


def import_named(name: str, kind: str) -> object:
    """Import `package.module:name`; `kind` is what it is meant to be, for the error."""
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise InputError(f"a {kind}'s name must look like package.module:name, got {name!r}")
    try:
        found: object = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"no {kind} {name!r}: {error}; give package.module:name of something importable: run in the folder of the "
            f"module, add it to PYTHONPATH, or pass a {kind}"
        ) from error
    return found
