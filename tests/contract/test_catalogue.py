"""What an agent can do: the list is complete and every entry describes itself."""

from __future__ import annotations

import importlib
import inspect
import typing

import pytest

from fleetmem.agent import declare, shapes
from fleetmem.agent.model import Action, Probe

NAMES = sorted(declare.CALLS)


def test_the_list_is_what_the_modules_declare() -> None:
    for module in {row.module for row in declare.CALLS.values()}:
        importlib.import_module("fleetmem.agent." + module)
    assert sorted(declare.CATALOGUE) == NAMES
    for name, entry in declare.CATALOGUE.items():
        home = "fleetmem.agent." + declare.CALLS[name].module
        assert entry.name == name
        # A module may keep one long probe in a file of its own beside it.
        assert entry.func.__module__.startswith(home)


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_describes_itself(name: str) -> None:
    entry = declare.find(name)
    assert isinstance(entry, Probe | Action)
    assert entry.timeout_seconds > 0
    text = inspect.getdoc(entry.func)
    assert text
    assert text.splitlines()[0].endswith(".")
    hints = typing.get_type_hints(entry.func, vars(shapes) | vars(typing), {"shapes": shapes})
    result = hints.pop("return")
    assert hasattr(result, "__required_keys__")  # a TypedDict
    assert result is declare.shape_at(declare.CALLS[name].shape)
    for parameter in inspect.signature(entry.func).parameters.values():
        assert parameter.default is not inspect.Parameter.empty, parameter.name
        assert parameter.name in hints


@pytest.mark.parametrize("name", NAMES)
def test_a_parameter_called_emit_is_the_only_one_that_is_no_option(name: str) -> None:
    entry = declare.find(name)
    for parameter in inspect.signature(entry.func).parameters.values():
        if callable(parameter.default):
            assert parameter.name == "emit"
        else:
            assert isinstance(parameter.default, (int, float, str, tuple, type(None)))


def test_an_unknown_name_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        declare.find("gpu.no_such_probe")


@pytest.mark.parametrize("name", NAMES)
def test_the_row_alone_says_the_limits_and_the_kind(name: str) -> None:
    row, entry = declare.CALLS[name], declare.find(name)
    assert entry.timeout_seconds == row.span_seconds
    assert isinstance(entry, Action) is row.action
    assert getattr(entry, "nvml", False) is row.nvml


def test_a_call_without_a_row_cannot_be_declared() -> None:
    with pytest.raises(KeyError, match="no_such_row"):
        declare.probe("gpu.no_such_row")


def test_what_asks_nvml_goes_to_the_child_that_holds_it() -> None:
    on_nvml = {name for name in NAMES if declare.CALLS[name].nvml}
    assert on_nvml == {"gpu.devices", "gpu.processes", "gpu.wait"}
