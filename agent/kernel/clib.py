"""The part of ``ctypes`` that the agent and NVML's binding use, made of its C half.

The package costs every host 4 ms of CPU to import, ``_ctypes`` alone 0.5 ms. An interpreter
whose C half is another (``POINTER`` has left it in 3.14) gets the package itself.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    LIBC: Any
    c_int: Any
    c_long: Any
    create_string_buffer: Any
    get_errno: Any
else:
    try:
        from _ctypes import (  # noqa: F401  the binding uses the others
            FUNCFLAG_CDECL,
            FUNCFLAG_USE_ERRNO,
            POINTER,
            CFuncPtr,
            Structure,
            Union,
            _SimpleCData,
            byref,
            dlopen,
            get_errno,
        )

        def _simple(code):
            return type("c_" + code, (_SimpleCData,), {"_type_": code})

        c_char, c_char_p, c_ushort, c_int, c_uint = map(_simple, "czHiI")
        c_long, c_ulong, c_longlong, c_ulonglong, c_double = map(_simple, "lLqQd")
        c_int32, c_uint32, c_int64 = c_int, c_uint, c_longlong

        class _Function(CFuncPtr):
            _flags_ = FUNCFLAG_CDECL | FUNCFLAG_USE_ERRNO
            _restype_ = c_int

        class CDLL:
            def __init__(self, name):
                self._handle = dlopen(name, 0)

            def __getitem__(self, name):
                return _Function((name, self))

            def __getattr__(self, name):
                if name.startswith("__"):
                    raise AttributeError(name)
                function = self[name]
                setattr(self, name, function)
                return function

        def create_string_buffer(size):
            return (c_char * size)()

        LIBC = CDLL(None)
    except ImportError:
        from ctypes import *  # noqa: F403
        from ctypes import CDLL

        LIBC = CDLL(None, use_errno=True)


def function(name: str, *arguments: Any, result: Any = c_int) -> Any:
    """A function of the C library with its types; AttributeError where there is none.

    It is its own object: ``syscall`` takes other arguments for each number.
    """
    found = LIBC[name]
    if arguments:
        found.argtypes = arguments
    found.restype = result
    return found
