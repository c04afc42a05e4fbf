"""The agent as it travels: parts named by the SHA-256 of their uncompressed content.

A part is text: lines ``module size``, an empty line, then the sources in that order. It is
a function of the sources alone (names sorted, no dates), so it is the same wherever it is
built, and the host asks only for parts it has not got.

``core`` is what every contact loads, ``more`` the rest of the agent, without ``shapes``
(annotations only). ``nvml`` is nvidia-ml-py's
``pynvml.py`` cut down, by source lines, to what the probes use and what that needs: the
whole file costs every host 22 ms of CPU to load, the cut one about a tenth.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import importlib.util
import zlib
from functools import cache
from pathlib import Path

import fleetmem.agent
from fleetmem.controller.contact import payload_cache
from fleetmem.controller.contact.agent_parts import AgentPart, Payload

AGENT = Path(fleetmem.agent.__file__).parent
LEFT_OUT = ("shapes", "boot", "gate")
CORE = (
    *("stage0", "guard", "serve", "calls", "ledger", "declare"),
    *("probes.host", "probes.gpu", "probes.holders", "probes.processes", "actions.signal"),
)
SHIMS = {
    "from ctypes import *": "from fleetmem.agent.kernel.clib import *",
    "import threading": "class threading:\n    from _thread import allocate_lock as Lock",
    "from functools import wraps": "def wraps(_original):\n    return lambda function: function",
}
"""Imports of pynvml's that cost a host 14 ms for some types, a lock and a docstring."""

UNUSED = ("_extractNVMLErrorsAsClasses()",)
"""What pynvml runs when it is loaded, for names that the agent does not use (a class an error)."""


@cache
def payload() -> Payload:
    """The payload, built once for each state of the sources: building costs 0.2 s of CPU."""
    sources = [path.read_bytes() for path in sorted(AGENT.rglob("*.py"))]
    sources += [Path(__file__).read_bytes(), pynvml_path().read_bytes()]
    key = hashlib.sha256(b"\0".join(hashlib.sha256(data).digest() for data in sources)).hexdigest()
    kept = payload_cache.load(key)
    if kept is None:
        kept = build()
        payload_cache.keep(key, kept)
    return kept


def build() -> Payload:
    """Build the payload from the sources."""
    wrap, bootstrap = boot()
    modules = agent_modules()
    first = needed(modules)
    core = {name: modules[name] for name in first}
    more = {name: source for name, source in modules.items() if name not in first}
    parts = (pack("core", core), pack("more", more), pack("nvml", nvml()))
    return Payload(wrap, bootstrap, stage0(), parts)


def pack(name: str, modules: dict[str, str]) -> AgentPart:
    """*modules* (dotted name to source; packages end with ``.__init__``) as a part."""
    bodies = {key: modules[key].encode() for key in sorted(modules)}
    head = "\n".join(f"{key} {len(body)}" for key, body in bodies.items())
    content = head.encode() + b"\n\n" + b"".join(bodies.values())
    digest = hashlib.sha256(content).hexdigest()
    return AgentPart(name, digest, len(content), zlib.compress(content, 9))


def agent_modules(left_out: tuple[str, ...] = LEFT_OUT) -> dict[str, str]:
    """Sources of the agent by module name, without the modules and rooms *left_out*."""
    modules = {"fleetmem.__init__": ""}
    for path in sorted(AGENT.rglob("*.py")):
        name = ".".join(path.relative_to(AGENT).with_suffix("").parts)
        if name.split(".")[0] not in left_out:
            modules[f"fleetmem.agent.{name}"] = plain(path.read_text("utf-8"))
    return modules


def needed(modules: dict[str, str], first: tuple[str, ...] = CORE) -> set[str]:
    """What *first* (the runtime and a survey) loads: those and all they import, late ones too.

    The rest is a part of its own, which a host verifies and loads only when it is asked for.
    """
    found = {name for name in modules if name.endswith(".__init__")}
    queue = [f"fleetmem.agent.{name}" for name in first]
    while queue:
        name = queue.pop()
        if name in found or name not in modules:
            continue
        found.add(name)
        for node in ast.walk(ast.parse(modules[name])):
            if isinstance(node, ast.ImportFrom) and node.module:
                queue.append(node.module)
                queue += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def boot() -> tuple[str, str]:
    """The wrapper for ``python -c`` and the bootstrap as base64 of its zlib bytes."""
    source = (AGENT / "boot.py").read_text("utf-8")
    wrap = next(
        node.value.value
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "WRAP"
        and isinstance(node.value, ast.Constant)
    )
    packed = base64.b64encode(zlib.compress(plain(source).encode(), 9)).decode()
    return str(wrap), packed


def stage0() -> bytes:
    """Stage 0 for a host whose cache has no core."""
    return zlib.compress(plain((AGENT / "stage0.py").read_text("utf-8")).encode(), 9)


def plain(source: str) -> str:
    """*source* without docstrings, comment lines and blank lines; code lines stay as they are."""
    lines = source.splitlines()
    kept_text = _string_lines(source)
    docstrings = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            docstrings |= _docstring_lines(node)
    result = []
    for number, line in enumerate(lines, start=1):
        bare = line.strip()
        if number in docstrings or (number not in kept_text and (not bare or bare[0] == "#")):
            continue
        result.append(line)
    return "\n".join(result) + "\n"


def _docstring_lines(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> set[int]:
    """Lines of all bare strings of *node*'s body, unless nothing else stands in it."""
    bare = [
        child
        for child in node.body
        if isinstance(child, ast.Expr)
        and isinstance(child.value, ast.Constant)
        and isinstance(child.value.value, str)
    ]
    if len(bare) == len(node.body):
        bare = bare[1:]
    return {n for child in bare for n in range(child.lineno, (child.end_lineno or 0) + 1)}


def _string_lines(source: str) -> set[int]:
    """Lines inside multi-line strings, where a blank or # is content."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant | ast.JoinedStr) and node.end_lineno != node.lineno:
            found |= set(range(node.lineno, (node.end_lineno or 0) + 1))
    return found


# --- the NVML binding ----------------------------------------------------------------------


def nvml() -> dict[str, str]:
    """``pynvml`` cut down to the names the agent uses."""
    from fleetmem.agent.services.nvml import NVML_NAMES

    return {"pynvml": trim(pynvml_path().read_text("utf-8"), NVML_NAMES)}


def pynvml_path() -> Path:
    """Where nvidia-ml-py's one file lies."""
    spec = importlib.util.find_spec("pynvml")
    if spec is None or spec.origin is None:
        raise RuntimeError("nvidia-ml-py is not installed beside fleetmem")
    return Path(spec.origin)


def trim(source: str, names: tuple[str, ...]) -> str:
    """The top-level statements of *source* that define *names* and what those use."""
    statements = [
        node
        for node in ast.parse(source).body
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        and ast.unparse(node) not in UNUSED
    ]
    uses = [_names_in(node) for node in statements]
    defined: dict[str, list[int]] = {}
    for at, node in enumerate(statements):
        for name in _defines(node):
            defined.setdefault(name, []).append(at)
    # What runs by itself (an if, a loop, a call) is kept; what nothing uses is not.
    wanted = [at for at, node in enumerate(statements) if not _defines(node)]
    queue = [at for name in names for at in defined.get(name, [])] + wanted
    kept: set[int] = set()
    while queue:
        at = queue.pop()
        if at in kept:
            continue
        kept.add(at)
        queue += [d for name in uses[at] for d in defined.get(name, [])]
    used = {name for at in kept for name in uses[at]}
    lines = source.splitlines()
    blocks = []
    for at in sorted(kept):
        node = statements[at]
        if isinstance(node, ast.Import | ast.ImportFrom) and not _needed(node, used):
            continue
        if ast.unparse(node) in SHIMS:
            blocks.append(SHIMS[ast.unparse(node)])
            continue
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        blocks.append("\n".join(lines[first - 1 : node.end_lineno]))
    return plain("\n".join(blocks) + "\n")


def _needed(node: ast.Import | ast.ImportFrom, used: set[str]) -> bool:
    """False for an import nobody uses, and for ``ctypes.util`` (used on Windows only)."""
    if isinstance(node, ast.ImportFrom) and node.module == "ctypes.util":
        return False
    return any(alias.name == "*" or (alias.asname or alias.name) in used for alias in node.names)


def _defines(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [t.id for t in node.targets if isinstance(t, ast.Name)]
    return []


def _names_in(node: ast.stmt) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
