"""What an agent can do: the list is complete and every entry describes itself."""

from __future__ import annotations

import importlib
import inspect
import typing

import pytest

from fleetmem.agent import declare, shapes
from fleetmem.agent.model import Action, Probe

NAMES = sorted(declare.MODULES)


def test_the_list_is_what_the_modules_declare() -> None:
    for module in set(declare.MODULES.values()):
        importlib.import_module("fleetmem.agent." + module)
    assert sorted(declare.CATALOGUE) == NAMES
    for name, entry in declare.CATALOGUE.items():
        home = "fleetmem.agent." + declare.MODULES[name]
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
    assert result.__module__.startswith(f"{shapes.__name__}.")
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


def test_probes_on_nvml_go_to_the_child_that_holds_it() -> None:
    on_nvml = {n for n in NAMES if getattr(declare.find(n), "nvml", False)}
    assert on_nvml == set(declare.NVML) == {"gpu.devices", "gpu.processes", "gpu.wait"}


def test_serve_knows_spans_and_kinds_without_loading_the_modules() -> None:
    spans = {name: declare.find(name).timeout_seconds for name in NAMES}
    assert {n: s for n, s in spans.items() if s != declare.SPAN_SECONDS} == declare.SPANS
    for name in NAMES:
        is_action = declare.MODULES[name].startswith("actions.")
        assert isinstance(declare.find(name), Action) is is_action
