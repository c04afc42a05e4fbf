"""YAML with positions: plain data, where each value stands, and every mistake at once.

Scalars follow YAML 1.2: only ``true`` and ``false`` are booleans, ``no``, ``0755`` and
``1:30`` are text. Tags and merge keys are refused, aliases and sizes are limited.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pydantic import BaseModel, ValidationError

Path = tuple[str | int, ...]

MAX_BYTES = 8 * 1024 * 1024
MAX_ALIASES = 100
MAX_VALUES = 1_000_000
MAX_DEPTH = 40
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})\Z")
_FLOAT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?\Z")
_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}
_TAGS = frozenset(f"tag:yaml.org,2002:{word}" for word in ("str", "map", "seq"))
_PLAIN_LINE = re.compile(r"\A[\w.\-]{1,64}\Z")


@dataclass(frozen=True)
class Problem:
    """One mistake: line and column count from 1 (0 where the file as a whole is meant)."""

    file: str
    line: int
    column: int
    path: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        """``file:line:column: path: message`` and the hint after a dash."""
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        path = f"{self.path}: " if self.path else ""
        hint = f" – {self.hint}" if self.hint else ""
        return f"{place}: {path}{self.message}{hint}"


@dataclass
class Document:
    """What a file says: *value* is plain data, *problems* what was wrong on the way.

    ``places`` maps a path to the (line, column) of its value, ``keys`` to that of its key.
    """

    file: str
    value: Any = None
    places: dict[Path, tuple[int, int]] = field(default_factory=dict)
    keys: dict[Path, tuple[int, int]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def add(self, path: Path, message: str, hint: str = "", at_key: bool = False) -> None:
        """Note a mistake at *path*, or at the nearest place around it that exists."""
        line, column = self.place(path, at_key)
        self.problems.append(Problem(self.file, line, column, spell(path), message, hint))

    def place(self, path: Path, at_key: bool = False) -> tuple[int, int]:
        """(line, column) of the value at *path*, of its key with *at_key*."""
        if at_key and path in self.keys:
            return self.keys[path]
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, (1, 1))

    def sorted_problems(self) -> list[Problem]:
        """The problems in the order of the file, each once."""
        return sorted(set(self.problems), key=lambda one: (one.line, one.column, one.message))


def spell(path: Path) -> str:
    """*path* as people write it: ``hosts.gh200-01.port``, ``rules[1].field``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN_LINE.match(part):
            text += f".{part}" if text else part
        else:
            text += f"[{part!r}]"
    return text


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``did you mean "port"?`` for the nearest known word, or nothing."""
    import difflib

    near = difflib.get_close_matches(word[:80], list(known), n=1, cutoff=0.6)
    return f'did you mean "{near[0]}"?' if near else ""


def read(path: str) -> Document:
    """The YAML file at *path*; what cannot be read at all is a problem too, never an exception."""
    document = Document(path)
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except IsADirectoryError:
        return _broken(document, "is a directory, not a file")
    except OSError as error:
        return _broken(document, (error.strerror or str(error)).lower())
    except ValueError as error:
        return _broken(document, str(error))
    return parse(data, path)


def parse(data: bytes, file: str) -> Document:
    """The YAML in *data*, which came from *file*."""
    document = Document(file)
    if len(data) > MAX_BYTES:
        return _broken(document, f"is larger than {MAX_BYTES // 1024 // 1024} MiB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", "replace")
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        document.problems.append(Problem(file, line, column, "", "not UTF-8"))
        return document
    try:
        node = _compose(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        message, hint = _syntax(error, "".join(text.splitlines()[line - 1 : line]))
        document.problems.append(Problem(file, line, column, "", message, hint))
    except yaml.YAMLError as error:
        document.problems.append(Problem(file, 1, 1, "", _one_line(str(error))))
    except RecursionError:
        document.problems.append(Problem(file, 1, 1, "", "nested too deeply"))
    else:
        if node is not None:
            document.value = _Reader(document).value(node, (), ())
    return document


def check(document: Document, model: type[BaseModel]) -> Any:
    """The document as *model*, or None after noting every mistake."""
    from pydantic import ValidationError

    try:
        return model.model_validate(document.value)
    except ValidationError as error:
        _note(document, model, error)
        return None


def _broken(document: Document, message: str) -> Document:
    document.problems.append(Problem(document.file, 0, 0, "", message))
    return document


def _syntax(error: yaml.MarkedYAMLError, line: str) -> tuple[str, str]:
    """What the parser says of *line*, where it stopped, and what is most often behind it."""
    message = _one_line(" ".join(part for part in (error.context, error.problem) if part))
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "a tab at the start of the line", "indent YAML with spaces only"
    if error.problem in (
        "did not find expected key",
        "mapping values are not allowed in this context",
    ):
        return message, "check how this line and the one before it are indented"
    return message, ""


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]


class _Loader(yaml.CSafeLoader):
    """Composes nodes only; every plain scalar stays text until ``_Reader`` sees it."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


def _compose(text: str) -> yaml.Node | None:
    loader = _Loader(text)
    try:
        node: yaml.Node | None = loader.get_single_node()
        return node
    finally:
        loader.dispose()


class _Reader:
    """Nodes to plain data; notes places and mistakes in its document."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._values = self._aliases = 0
        self._told = False
        self._seen: set[int] = set()

    def value(self, node: yaml.Node, path: Path, inside: tuple[int, ...]) -> Any:
        document = self._document
        place = (node.start_mark.line + 1, node.start_mark.column + 1)
        document.places[path] = place
        self._values += 1
        if id(node) in self._seen:
            self._aliases += 1
        elif not isinstance(node, yaml.ScalarNode):
            self._seen.add(id(node))
        if self._problem(node, path, inside):
            return None
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node)
        inside = (*inside, id(node))
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, n), inside) for n, item in enumerate(node.value)]
        return dict(self._items(node, path, inside))

    def _problem(self, node: yaml.Node, path: Path, inside: tuple[int, ...]) -> bool:
        if id(node) in inside:
            self._document.add(path, "an alias that contains itself")
        elif len(inside) > MAX_DEPTH:
            self._document.add(path, "nested too deeply")
        elif self._aliases > MAX_ALIASES or self._values > MAX_VALUES:
            if not self._told:
                self._told = True
                limit = MAX_ALIASES if self._aliases > MAX_ALIASES else MAX_VALUES
                what = "aliases" if self._aliases > MAX_ALIASES else "values"
                self._document.add(path, f"more than {limit} {what}")
        elif node.tag not in _TAGS and node.tag != "!":
            self._document.add(path, f"tags such as {node.tag[:60]} are not used here")
        else:
            return False
        return True

    def _items(
        self, node: yaml.Node, path: Path, inside: tuple[int, ...]
    ) -> Iterator[tuple[str, Any]]:
        document = self._document
        first: dict[str, int] = {}
        for key_node, value_node in node.value:
            line, column = key_node.start_mark.line + 1, key_node.start_mark.column + 1
            if not isinstance(key_node, yaml.ScalarNode):
                document.problems.append(
                    Problem(document.file, line, column, spell(path), "a key must be one word")
                )
                continue
            key = key_node.value
            here = (*path, key)
            if key in first:
                message = f'the key "{key[:60]}" is already set in line {first[key]}'
                document.problems.append(
                    Problem(document.file, line, column, spell(path), message, "keep one of them")
                )
                continue
            first[key] = line
            document.keys[here] = (line, column)
            yield key, self.value(value_node, here, inside)


def _scalar(node: yaml.ScalarNode) -> Any:
    text: str = node.value
    if node.style:  # quoted, or a block; plain is "" or None
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INT.match(text):
        return int(text)
    if _FLOAT.match(text):
        return float(text)
    return text


def _note(document: Document, model: type[BaseModel], error: ValidationError) -> None:
    for one in error.errors(include_url=False):
        path: Path = tuple(one["loc"])
        kind = one["type"]
        of_key = bool(path) and path[-1] == "[key]"
        path = path[:-1] if of_key else path
        if kind == "extra_forbidden":
            known = _known_keys(model, path[:-1])
            hint = did_you_mean(str(path[-1]), known) or (
                "known here: " + ", ".join(known) if known else ""
            )
            document.add(path, "unknown key", hint, at_key=True)
        elif kind == "missing":
            document.add(path[:-1], f'"{path[-1]}" is missing')
        else:
            message = _MESSAGES.get(kind) or _plain(one["msg"])
            document.add(path, message, _surprise(one), at_key=of_key)


_MESSAGES = {
    "bool_type": "true or false is expected",
    "int_type": "a whole number is expected",
    "float_type": "a number is expected",
    "string_type": "text is expected",
    "list_type": "a list is expected",
    "dict_type": "keys and values are expected",
    "model_type": "keys and values are expected",
}


def _plain(message: str) -> str:
    text = _one_line(message).removeprefix("Value error, ").removeprefix("Input ")
    return text[:1].lower() + text[1:]


def _surprise(one: Any) -> str:
    """A hint where YAML readers differ about what was written."""
    value, kind = one.get("input"), one["type"]
    if kind == "bool_type" and isinstance(value, str) and value.lower() in _YES_NO:
        return f'write {_YES_NO[value.lower()]}, "{value}" is text here'
    if kind == "int_type" and isinstance(value, str) and value.strip().isdigit():
        return f"write {int(value)}" + ("" if value[0] == "0" else " without quotes")
    if kind == "string_type" and isinstance(value, int | float):
        return "put it in quotes"
    return ""


_YES_NO = {
    **dict.fromkeys(("yes", "on", "y", "true"), "true"),
    **dict.fromkeys(("no", "off", "n", "false"), "false"),
}


def _known_keys(model: type[BaseModel], path: Path) -> list[str]:
    """The keys that the model allows at *path*."""
    from typing import get_args

    from pydantic import BaseModel

    kind: Any = model
    for part in path:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            info = kind.model_fields.get(str(part))
            kind = info.annotation if info else None
            inner = [arg for arg in get_args(kind) if arg is not type(None)]
            if len(inner) == 1 and kind is not None and not _is_container(kind):
                kind = inner[0]
        else:
            inner = [arg for arg in get_args(kind) if arg is not type(None)]
            kind = inner[-1] if inner else None
            wrapped = [arg for arg in get_args(kind) if arg is not type(None)]
            if len(wrapped) == 1 and not _is_container(kind):
                kind = wrapped[0]
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return list(kind.model_fields)
    return []


def _is_container(kind: Any) -> bool:
    from typing import get_origin

    return get_origin(kind) in (dict, list, tuple, set)
