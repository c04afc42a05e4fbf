"""What travels: the same wherever it is built, small, and whole."""

from __future__ import annotations

import ast
import hashlib
import os
import subprocess
import sys
import types
import zlib
from pathlib import Path

import pytest

from fleetmem.agent.declare import CALLS
from fleetmem.agent.services.nvml import NVML_NAMES
from fleetmem.controller.contact import payload

ROOT = Path(payload.__file__).parents[2]


def test_it_is_the_same_wherever_it_is_built(tmp_path: Path) -> None:
    """Another process, another folder, another hash seed, another umask."""
    code = "from fleetmem.controller.contact.payload import payload; print(payload().labels)"
    built = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "TZ": zone},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed, zone in (("1", "UTC"), ("2", "Asia/Tokyo"))
    }
    assert built == {payload.payload().labels}


def test_parts_are_named_by_their_content() -> None:
    parts = payload.payload().parts
    assert [part.name for part in parts] == ["core", "more", "nvml"]
    for part in parts:
        content = zlib.decompress(part.compressed)
        assert hashlib.sha256(content).hexdigest() == part.sha256
        assert len(content) == part.size_bytes
        assert part.label == f"{part.name}:{part.sha256}:{part.size_bytes}"
    assert len(parts[0].compressed) < 64 * 1024
    assert len(payload.payload().bootstrap) < 1536


def test_core_is_what_a_survey_loads_and_the_rest_is_a_part_of_its_own() -> None:
    """Core must not grow with every probe: what only others load is verified later."""
    needed = payload.needed(payload.agent_modules())
    assert {f"fleetmem.agent.{name}" for name in payload.CORE} <= needed
    assert "fleetmem.agent.kernel.peers" in needed  # imported by processes
    assert "fleetmem.agent.probes.journal" not in needed


def test_the_parts_are_the_whole_agent_and_nothing_else() -> None:
    names = set(payload.agent_modules())
    wanted = {f"fleetmem.agent.{row.module}" for row in CALLS.values()}
    assert wanted <= names
    assert not [name for name in names if name.startswith("fleetmem.agent.shapes")]
    assert "fleetmem.agent.boot" not in names
    assert not [name for name in names if not name.startswith("fleetmem.")]
    head = payload.pack("core", {"b": "x = 1\n", "a": "y = 'é'\n"})
    assert zlib.decompress(head.compressed) == "a 9\nb 6\n\ny = 'é'\nx = 1\n".encode()


@pytest.mark.parametrize("path", sorted((ROOT / "agent").rglob("*.py")), ids=lambda p: p.stem)
def test_stripped_source_means_the_same(path: Path) -> None:
    """Only docstrings and comments go; what is left is the same program."""
    source = path.read_text("utf-8")
    assert ast.dump(without_docstrings(source)) == ast.dump(
        without_docstrings(payload.plain(source))
    )


def without_docstrings(source: str) -> ast.Module:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            rest = [
                child
                for child in node.body
                if not (
                    isinstance(child, ast.Expr)
                    and isinstance(child.value, ast.Constant)
                    and isinstance(child.value.value, str)
                )
            ]
            node.body = rest or [ast.Pass()]
    return tree


def test_plain() -> None:
    source = '''"""About."""
# a comment
x = """text
# not a comment

end"""  # stays

def f():
    """Only this."""

def g():
    """First."""
    return 1
'''
    assert payload.plain(source) == (
        'x = """text\n# not a comment\n\nend"""  # stays\n'
        'def f():\n    """Only this."""\ndef g():\n    return 1\n'
    )


def test_the_binding_keeps_what_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    source = payload.nvml()["pynvml"]
    module = types.ModuleType("pynvml")
    monkeypatch.setitem(sys.modules, "pynvml", module)
    exec(compile(source, "pynvml", "exec"), module.__dict__)
    assert [name for name in NVML_NAMES if not hasattr(module, name)] == []
    assert not hasattr(module, "nvmlDeviceSetPersistenceMode")
    assert len(source) < 120_000


def test_trim() -> None:
    source = (
        "import os\nimport sys\nfrom ctypes.util import find_library\n"
        "A = 1\nB = A + 1\nC = 5\n"
        "def used():\n    return other(B)\n"
        "def other(x):\n    return sys.byteorder, x\n"
        "def unused():\n    return os\n"
        "for i in range(2):\n    C\n"
    )
    assert payload.trim(source, ("used",)) == (
        "import sys\nA = 1\nB = A + 1\nC = 5\n"
        "def used():\n    return other(B)\n"
        "def other(x):\n    return sys.byteorder, x\n"
        "for i in range(2):\n    C\n"
    )


def test_stage0_parses_on_old_interpreters() -> None:
    """Its first lines must answer python_too_old, so the whole file must parse there."""
    source = (ROOT / "agent" / "stage0.py").read_text("utf-8")
    ast.parse(source, feature_version=(3, 6))
    assert 'f"' not in source
    assert ":=" not in source
