"""The rules of the house as functions: a checkout in, a line for each breach out.

``agent/``, ``controller/`` and ``tests/`` are looked at; what only some rooms must keep is said
at each rule. Paths are relative to the checkout.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

MOST_FILES = 15
LEAST_LINES = 20
MOST_LINES = 400
MOST_OF_A_PREFIX = 2
BANNED = {"utils", "util", "helpers", "helper", "manager", "common", "misc"}

IN_FEATURES = {"run", "section", "plan"}
"""Names that each feature may have a file of."""

NAMED_AFTER_FEATURES = ("controller/cli", "controller/render")
"""Rooms whose files are named after the feature, command or screen that they are of."""

NAMED_AFTER_FAMILIES = ("agent/probes", "agent/actions", "agent/shapes")
"""Rooms whose files are named after a family of probes."""


def product(root: Path) -> list[Path]:
    """The modules of the product, without ``__init__``."""
    return [path for room in ("agent", "controller") for path in modules(root, room)]


def modules(root: Path, room: str) -> list[Path]:
    """The modules below *room*, without ``__init__``."""
    return [p for p in sorted((root / room).rglob("*.py")) if p.stem != "__init__"]


def rooms_too_full(root: Path) -> Iterator[str]:
    """A room has at most 15 modules; ``tests`` too."""
    paths = [*product(root), *modules(root, "tests")]
    for room, count in sorted(Counter(path.parent for path in paths).items()):
        if count > MOST_FILES:
            yield f"{room.relative_to(root)}: {count} modules"


def files_out_of_size(root: Path) -> Iterator[str]:
    """A module of the product has 20 to 400 lines; a family of probes may have a small shape."""
    for path in product(root):
        count = len(path.read_text("utf-8").splitlines())
        least = 1 if path.relative_to(root).as_posix().startswith("agent/shapes/") else LEAST_LINES
        if not least <= count <= MOST_LINES:
            yield f"{path.relative_to(root)}: {count} lines"


def prefixes_that_are_rooms(root: Path) -> Iterator[str]:
    """Three modules with one prefix are a folder."""
    by_room: dict[Path, list[str]] = defaultdict(list)
    for path in product(root):
        by_room[path.parent].append(path.stem)
    for room, names in sorted(by_room.items()):
        for prefix, count in sorted(Counter(name.split("_")[0] for name in names).items()):
            if count > MOST_OF_A_PREFIX:
                yield f"{room.relative_to(root)}: {count} modules begin with {prefix}"


def names_used_twice(root: Path) -> Iterator[str]:
    """No module name twice, but for what features and families of probes are named after."""
    homes: dict[str, list[str]] = defaultdict(list)
    for path in product(root):
        place = path.relative_to(root).as_posix()
        if not place.startswith((*NAMED_AFTER_FEATURES, *NAMED_AFTER_FAMILIES)):
            homes[path.stem].append(place)
    for name, places in sorted(homes.items()):
        if len(places) > 1 and name not in IN_FEATURES:
            yield f"{name}: {', '.join(places)}"


def banned_names(root: Path) -> Iterator[str]:
    """No ``utils``, ``helpers``, ``manager``: neither module, room nor end of a name."""
    for path in [*product(root), *modules(root, "tests")]:
        for part in path.relative_to(root).with_suffix("").parts:
            if BANNED & set(part.split("_")):
                yield str(path.relative_to(root))


def nouns_used_twice(root: Path) -> Iterator[str]:
    """One public class name has one meaning on each side: on hosts, and at the desk, where the
    shapes of readings are read too."""
    for rooms in (("agent",), ("controller", "agent/shapes")):
        homes: dict[str, list[str]] = defaultdict(list)
        for path in (path for room in rooms for path in modules(root, room)):
            for node in ast.parse(path.read_text("utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes[node.name].append(str(path.relative_to(root)))
        for name, places in sorted(homes.items()):
            if len(places) > 1:
                yield f"{name}: {', '.join(places)}"


def base_classes(root: Path) -> Iterator[str]:
    """No class of the product derives from another one of it, but for errors and shapes."""
    kinds: dict[str, tuple[str, ast.ClassDef]] = {}
    for path in product(root):
        place = path.relative_to(root).as_posix()
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef):
                kinds[node.name] = (place, node)
    for name, (place, node) in sorted(kinds.items()):
        for base in node.bases:
            word = base.id if isinstance(base, ast.Name) else ""
            if word in kinds and not _derives_freely(word, kinds):
                yield f"{place}: {name} derives from {word}"


FREE_BASES = {"Exception", "TypedDict", "BaseModel", "NamedTuple"}
"""What errors, shapes of JSON and shapes of what people write are made of."""


def _derives_freely(name: str, kinds: dict[str, tuple[str, ast.ClassDef]]) -> bool:
    bases = kinds[name][1].bases
    words = {base.id for base in bases if isinstance(base, ast.Name)}
    words |= {base.attr for base in bases if isinstance(base, ast.Attribute)}
    return bool(words & FREE_BASES) or any(
        word in kinds and _derives_freely(word, kinds) for word in words
    )


# --- imports -------------------------------------------------------------------------------


def circles(root: Path) -> Iterator[str]:
    """No import circle, late imports and those of type checkers included."""
    edges = imports(root)
    for group in strongly_connected(edges):
        yield " <-> ".join(sorted(group))


def imports(root: Path) -> dict[str, set[str]]:
    """Which module of the product imports which."""
    names: dict[str, Path] = {}
    for room in ("agent", "controller"):
        for path in sorted((root / room).rglob("*.py")):
            parts = ["fleetmem", *path.relative_to(root).with_suffix("").parts]
            names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    edges: dict[str, set[str]] = {name: set() for name in names}
    for name, path in names.items():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    found = whole if whole in names else node.module
                    if found in names:
                        edges[name].add(found)
    return edges


def strongly_connected(edges: dict[str, set[str]]) -> list[set[str]]:
    """Groups of two or more that reach each other."""
    reach = {name: _reached(name, edges) for name in edges}
    groups: list[set[str]] = []
    for name in edges:
        if name in reach[name] and not any(name in group for group in groups):
            groups.append({other for other in reach[name] if name in reach[other]})
    return groups


def _reached(name: str, edges: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    queue = list(edges[name])
    while queue:
        other = queue.pop()
        if other not in found:
            found.add(other)
            queue += edges[other]
    return found


RULES = (
    rooms_too_full,
    files_out_of_size,
    prefixes_that_are_rooms,
    names_used_twice,
    banned_names,
    nouns_used_twice,
    base_classes,
    circles,
)
