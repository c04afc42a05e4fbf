"""``fleetmem gate --emit FILE``: the gate as one Python file that needs nothing else.

It carries the sources of the agent's modules that the gate loads, and the cut-down ``pynvml``,
so it is the same code that ``fleetmem gate`` runs. Python 3.8 and newer.
"""

from __future__ import annotations

import base64
import textwrap
import zlib

from fleetmem.agent.wire import dumps
from fleetmem.controller.contact import payload

HEAD = '''\
#!/usr/bin/env python3
"""fleetmem gate {version}: wait until GPU memory is free, or say who holds it.

Made by: fleetmem gate --emit FILE. Apache-2.0; the carried pynvml is NVIDIA's (BSD).
"""

import sys

if sys.version_info < (3, 8):
    sys.exit("gate: needs Python 3.8 or newer")

import base64
import importlib.abc
import importlib.util
import json
import zlib

PACKED = """
{packed}
"""
SOURCES = json.loads(zlib.decompress(base64.b85decode("".join(PACKED.split()))).decode())


class Carried(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules out of SOURCES, before any that are installed."""

    def find_spec(self, name, path=None, target=None):
        package = name + ".__init__" in SOURCES
        if not package and name not in SOURCES:
            return None
        return importlib.util.spec_from_loader(name, self, is_package=package)

    def exec_module(self, module):
        name = module.__name__
        source = SOURCES.get(name) if name in SOURCES else SOURCES[name + ".__init__"]
        exec(compile(source, "<gate:%s>" % name, "exec"), module.__dict__)


sys.meta_path.insert(0, Carried())

from fleetmem.agent.gate.main import main

sys.exit(main())
'''


def standalone(version: str) -> str:
    """The file's text; the same for the same sources."""
    modules = payload.agent_modules(left_out=("shapes", "boot"))
    wanted = payload.needed(modules, first=("gate.main",))
    carried = {name: source for name, source in modules.items() if name in wanted}
    carried.update(payload.nvml())
    text = dumps({name: carried[name] for name in sorted(carried)})
    packed = base64.b85encode(zlib.compress(text.encode(), 9)).decode()
    return HEAD.format(version=version, packed=textwrap.fill(packed, 98))
