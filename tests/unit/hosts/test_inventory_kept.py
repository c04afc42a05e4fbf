"""An inventory that was parsed once is not parsed again, and nothing else is taken for it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fleetmem.controller.errors import InventoryInvalid
from fleetmem.controller.hosts import inventory
from fleetmem.controller.hosts.host import Inventory
from fleetmem.controller.text import kept

ROOT = Path(__file__).parents[3]
TEXT = """
defaults: {user: root, identity: keys/fleet, connect_timeout: 2s}
groups:
  all-h100: {hosts: "h100-[01-03]", serves: llama, labels: {rack: a}, jump: [gw, me@inner:2222]}
hosts:
  gw: {address: 10.0.0.1, jump: []}
  h100-02: {address: 10.0.0.2, port: 2222, sudo: true, labels: {rack: b}, python: /opt/python3}
  box: {transport: command, command: [ssh, box, "{command}"], known_hosts: /etc/hosts.known}
"""


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Each time a file is really parsed; with a cache directory of its own."""
    seen: list[str] = []
    build = inventory._from_bytes

    def counted(data: bytes, file: str) -> Inventory:
        seen.append(file)
        return build(data, file)

    monkeypatch.setattr(inventory, "_from_bytes", counted)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return seen


def kept_file(tmp_path: Path) -> Path:
    (file,) = (tmp_path / "cache" / "fleetmem").glob("inventory-*.json")
    return file


def written(tmp_path: Path, text: str = TEXT) -> str:
    path = tmp_path / "inventory.yaml"
    path.write_text(text)
    return str(path)


def test_the_second_load_parses_nothing_and_says_the_same(
    parses: list[str], tmp_path: Path
) -> None:
    path = written(tmp_path)
    first, second = inventory.load(path), inventory.load(path)
    assert first == second
    assert list(first.hosts) == list(second.hosts)
    assert second.file == path
    assert second.hosts["h100-02"].identities == (str(tmp_path / "keys/fleet"),)
    assert [hop.name for hop in second.hosts["h100-01"].jump] == ["gw", "me@inner:2222"]
    assert len(parses) == 1


def test_the_example_comes_back_whole(parses: list[str]) -> None:
    path = str(ROOT / "inventory.example.yaml")
    assert inventory.load(path) == inventory.load(path)
    assert len(parses) == 1


def test_nothing_that_parsing_costs_is_loaded_again(tmp_path: Path) -> None:
    """Another process that finds the result loads neither pydantic nor YAML."""
    import subprocess

    script = (
        "import sys; from fleetmem.controller.hosts import inventory\n"
        "inventory.load(sys.argv[1])\n"
        "print(sorted({'pydantic', 'yaml'} & set(sys.modules)))\n"
    )
    command = [sys.executable, "-c", script, written(tmp_path)]
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    said = [
        subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert said == ["['pydantic', 'yaml']\n", "[]\n"]


@pytest.mark.parametrize("what", ["text", "home", "place", "code"])
def test_whatever_the_result_depends_on_is_in_its_name(
    parses: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    path = written(tmp_path)
    inventory.load(path)
    if what == "text":
        written(tmp_path, TEXT + "  new: {}\n")
    elif what == "home":
        monkeypatch.setenv("HOME", "/elsewhere")
    elif what == "place":
        (tmp_path / "there").mkdir()
        path = written(tmp_path / "there")
    else:
        monkeypatch.setattr(kept, "code_stamp", lambda *_: b"another state of the code")
    inventory.load(path)
    assert len(parses) == 2


@pytest.mark.parametrize("damage", ["cut", "changed", "swapped", "empty", "writable", "link"])
def test_what_cannot_be_trusted_is_parsed_again(
    parses: list[str], tmp_path: Path, damage: str
) -> None:
    path = written(tmp_path)
    first = inventory.load(path)
    file = kept_file(tmp_path)
    data = file.read_bytes()
    if damage == "cut":
        file.write_bytes(data[:-20])
    elif damage == "changed":
        file.write_bytes(data.replace(b"10.0.0.2", b"10.6.6.6"))
    elif damage == "swapped":  # sound, but made from another text
        written(tmp_path, TEXT.replace("10.0.0.2", "10.6.6.6"))
        inventory.load(path)
        (other,) = {*file.parent.glob("inventory-*.json")} - {file}
        other.rename(file)
        written(tmp_path)
        parses.clear()
        parses.append("the first")
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "writable":
        file.chmod(0o666)
    else:
        moved = tmp_path / "moved.json"
        file.rename(moved)
        file.symlink_to(moved)
    assert inventory.load(path) == first
    assert len(parses) == 2


def test_a_directory_that_others_can_enter_is_not_used(parses: list[str], tmp_path: Path) -> None:
    (tmp_path / "cache" / "fleetmem").mkdir(parents=True)
    (tmp_path / "cache" / "fleetmem").chmod(0o755)
    path = written(tmp_path)
    assert inventory.load(path) == inventory.load(path)
    assert len(parses) == 2
    assert list((tmp_path / "cache" / "fleetmem").iterdir()) == []


def test_what_is_kept_is_for_its_owner_alone_and_bounded(parses: list[str], tmp_path: Path) -> None:
    for number in range(12):
        inventory.load(written(tmp_path, f"hosts: {{h{number}: {{}}}}\n"))
    place = tmp_path / "cache" / "fleetmem"
    assert place.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in place.iterdir()} == {0o600}
    assert len(list(place.iterdir())) == 8


def test_mistakes_are_named_every_time(parses: list[str], tmp_path: Path) -> None:
    path = written(tmp_path, "hosts: {a: {prot: 22}}\n")
    for _ in range(2):
        with pytest.raises(InventoryInvalid, match=r"did you mean .port"):
            inventory.load(path)
    assert len(parses) == 2


def test_another_user_s_home_is_looked_up_each_time(parses: list[str], tmp_path: Path) -> None:
    path = written(tmp_path, "hosts: {a: {identity: ~root/.ssh/key}}\n")
    assert inventory.load(path).hosts["a"].identities == ("/root/.ssh/key",)
    assert not (tmp_path / "cache").exists()
