"""Readings made from their shapes: one of everything, sound to the last field."""

from __future__ import annotations

import types
import typing
from typing import Any, Literal, Union, get_args, get_origin


def sample(hint: Any) -> Any:
    """A value of the annotation *hint*: lists and mappings with one row, nothing absent."""
    origin = get_origin(hint)
    if hasattr(hint, "__required_keys__"):
        return {key: sample(inner) for key, inner in typing.get_type_hints(hint).items()}
    if origin in (Union, types.UnionType):
        return sample(next(arg for arg in get_args(hint) if arg is not type(None)))
    if origin is Literal:
        return get_args(hint)[0]
    if origin is list:
        return [sample(get_args(hint)[0])]
    if origin is dict:
        return {"0": sample(get_args(hint)[1])}
    return {bool: True, int: 7, float: 0.5, str: "text"}[hint]
