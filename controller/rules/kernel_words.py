"""Which of the kernel's lines tell of lost memory, processes or devices.

The words stand in ``playbooks/kernel.yaml``.
"""

from __future__ import annotations

import functools
import os

from pydantic import BaseModel, ConfigDict, Field

from fleetmem.controller.text import yaml_nodes

FILE = os.path.normpath(
    os.path.join(os.path.dirname(__file__), "..", "..", "playbooks", "kernel.yaml")
)


class KernelWord(BaseModel):
    """One kind of line: the words that it holds, what it tells of, lines of its own."""

    model_config = ConfigDict(extra="forbid", strict=True)
    id: str = Field(pattern=r"^[a-z][a-z0-9-]*$")
    find: list[str] = Field(min_length=1)
    about: str
    tests: list[str] = Field(min_length=1)
    others: list[str] = Field(default_factory=list)


class KernelFile(BaseModel):
    """The file."""

    model_config = ConfigDict(extra="forbid", strict=True)
    kernel: list[KernelWord]


def check(document: yaml_nodes.Document) -> KernelFile | None:
    """The file's words; each must be in its own test lines, and in none of the others."""
    found: KernelFile | None = yaml_nodes.check(document, KernelFile)
    for number, one in enumerate(found.kernel if found is not None else ()):
        for n, line in enumerate(one.tests):
            if not any(word in line for word in one.find):
                document.add(("kernel", number, "tests", n), "none of its words is in it")
        for n, line in enumerate(one.others):
            if any(word in line for word in one.find):
                document.add(("kernel", number, "others", n), "one of its words is in it")
    return found


@functools.cache
def kernel_words(path: str = FILE) -> tuple[str, ...]:
    """All words; raises ``PlaybookInvalid`` with every mistake."""
    from fleetmem.controller.errors import PlaybookInvalid

    document = yaml_nodes.read(path)
    found = None if document.problems else check(document)
    if document.problems or found is None:
        raise PlaybookInvalid("\n".join(str(one) for one in document.sorted_problems()))
    return tuple(dict.fromkeys(word for one in found.kernel for word in one.find))
