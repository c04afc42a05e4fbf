"""The C library through the C half of ctypes, and through the package where that half differs."""

from __future__ import annotations

import _ctypes
import ctypes
import importlib.util
import os
import types

import pytest

from fleetmem.agent.kernel import clib


def load() -> types.ModuleType:
    """A fresh copy of the module."""
    spec = importlib.util.find_spec("fleetmem.agent.kernel.clib")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def uses(module: types.ModuleType) -> None:
    """What the agent and the binding do with it."""
    assert module.function("getpid")() == os.getpid()
    kept = module.function("strtoll", module.c_char_p, module.c_char_p, module.c_int)
    kept.restype = module.c_int64
    assert kept(b"-8589934592", None, 10) == -(2**33)
    assert module.function("chdir")(b"/no/such/folder") == -1
    assert module.get_errno() == 2
    with pytest.raises(AttributeError):
        module.function("no_such_function")
    with pytest.raises(OSError, match="no-such-library"):
        module.CDLL("no-such-library.so.1")
    buffer = module.create_string_buffer(8)
    assert module.LIBC.strcpy(buffer, b"hello")
    assert buffer.value == b"hello"
    number = module.c_uint(7)
    assert module.POINTER(module.c_uint)(number)[0] == 7


def test_the_c_half_alone() -> None:
    module = load()
    assert module.c_int is not ctypes.c_int
    uses(module)


def test_the_package_where_the_c_half_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Python 3.14, whose POINTER is the package's own."""
    monkeypatch.delattr(_ctypes, "POINTER")
    module = load()
    assert module.c_int is ctypes.c_int
    uses(module)


@pytest.mark.parametrize(
    "name",
    ["char", "ushort", "int", "uint", "long", "ulong", "longlong", "ulonglong", "double", "int32",
     "uint32", "int64"],
)  # fmt: skip
def test_types_are_as_large_as_the_packages(name: str) -> None:
    ours, theirs = getattr(clib, f"c_{name}"), getattr(ctypes, f"c_{name}")
    assert ctypes.sizeof(ours) == ctypes.sizeof(theirs)
    assert [ours(n).value for n in ((b"a",) if name == "char" else (-1, 3))] == [
        theirs(n).value for n in ((b"a",) if name == "char" else (-1, 3))
    ]
