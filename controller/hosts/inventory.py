"""Who: the hosts of an inventory file, each with everything needed to reach it.

    defaults: {user: root, identity: ~/.ssh/fleet}
    groups:
      h100: {hosts: "h100-[01-64]", serves: llama-70b, labels: {rack: a}}
    hosts:
      h100-07: {address: 10.0.0.7, port: 2222}

Later and more specific wins: defaults, groups in the order of the file, node sets under
``hosts``, single names under ``hosts``. ``inventory.example.yaml`` shows every key.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace

from fleetmem.controller.errors import InventoryInvalid
from fleetmem.controller.hosts.host import Inventory
from fleetmem.controller.hosts.kept_inventory import from_plain, to_plain
from fleetmem.controller.text import kept

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fleetmem.controller.text.yaml_nodes import Document

MAX_SHOWN = 50
_NAMED_HOME = re.compile(rb"~[A-Za-z0-9_]")
"""``~user``: where that leads is for the password database to say, each time."""

MACHINE_FILE = "/etc/fleetmem/inventory.yaml"


def find(path: str | None = None) -> tuple[str | None, tuple[str, ...]]:
    """The inventory file to use, None where there is none, and warnings.

    *path* (``-i``), else ``$FLEETMEM_INVENTORY``, ``./inventory.yaml``, the user's and the
    machine's configuration. A ``./inventory.yaml`` that others can write is passed over:
    it can name commands to run.
    """
    chosen = path or os.environ.get("FLEETMEM_INVENTORY")
    if chosen:
        return os.path.expanduser(chosen), ()
    warnings: tuple[str, ...] = ()
    if os.path.lexists("inventory.yaml"):
        reason = _untrusted("inventory.yaml")
        if not reason:
            return "inventory.yaml", ()
        warnings = (f"./inventory.yaml is ignored: {reason}; name it with -i to use it",)
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    for place in (
        os.path.join(config, "fleetmem", "inventory.yaml"),
        MACHINE_FILE,
    ):
        if os.path.exists(place):
            return place, warnings
    return None, warnings


def _untrusted(path: str) -> str:
    try:
        status = os.stat(path)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    if status.st_uid not in (os.getuid(), 0):
        return "it belongs to another user"
    if status.st_mode & 0o022:
        return "others can write it"
    return ""


def load(path: str | None = None) -> Inventory:
    """The inventory, an empty one where there is no file.

    InventoryInvalid with every mistake, one ``file:line:column: path: message`` a line.
    """
    chosen, warnings = find(path)
    if chosen is None:
        return Inventory(warnings=warnings)
    data = kept.content(chosen)
    if data is None or _NAMED_HOME.search(data):
        from fleetmem.controller.text import yaml_nodes

        return _build(yaml_nodes.read(chosen), chosen, warnings)
    places = (os.path.dirname(os.path.abspath(chosen)), os.path.expanduser("~"))
    code = kept.code_stamp(os.path.dirname(__file__), kept.YAML)
    inputs = (data, *map(os.fsencode, places), code)
    plain = kept.kept("inventory", inputs, lambda: to_plain(_from_bytes(data, chosen)))
    return replace(from_plain(plain), file=chosen, warnings=warnings)


def _from_bytes(data: bytes, file: str) -> Inventory:
    from fleetmem.controller.text import yaml_nodes

    return _build(yaml_nodes.parse(data, file), file, ())


def parse(text: str, file: str = "inventory.yaml") -> Inventory:
    """The inventory in *text*; paths in it are relative to *file*."""
    return _from_bytes(text.encode(), file)


def _build(document: Document, file: str, warnings: tuple[str, ...]) -> Inventory:
    from fleetmem.controller.hosts.inventory_schema import File
    from fleetmem.controller.hosts.merge import assemble
    from fleetmem.controller.text import yaml_nodes

    if document.value is None and not document.problems:
        document.value = {}
    model = yaml_nodes.check(document, File) if document.value is not None else None
    if model is None or document.problems:
        raise InventoryInvalid(_lines(document))
    inventory = assemble(document, model, os.path.dirname(os.path.abspath(file)))
    if document.problems:
        raise InventoryInvalid(_lines(document))
    return replace(inventory, file=file, warnings=warnings)


def _lines(document: Document) -> str:
    problems = document.sorted_problems()
    lines = [str(problem) for problem in problems[:MAX_SHOWN]]
    if len(problems) > MAX_SHOWN:
        lines.append(f"{document.file}: and {len(problems) - MAX_SHOWN} more")
    return "\n".join(lines)
