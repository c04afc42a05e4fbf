"""The inventory: every mistake at once with its place, layers merged in one order."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetmem.controller.errors import InventoryInvalid
from fleetmem.controller.hosts import inventory
from fleetmem.controller.hosts.host import Host, Inventory

EXAMPLE = Path(__file__).parents[3] / "inventory.example.yaml"


def parse(text: str) -> Inventory:
    return inventory.parse(text, "/etc/x/inventory.yaml")


def mistakes(text: str) -> list[str]:
    with pytest.raises(InventoryInvalid) as caught:
        inventory.parse(text, "i.yaml")
    assert caught.value.exit_code == 2
    return caught.value.message.splitlines()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hosts:\n\th1: {}\n", "i.yaml:2:1: a tab at the start of the line"),
        ("hosts:\n  h1:\n  \tport: 22\n", "i.yaml:3:3: a tab at the start of the line"),
        ("hosts:\n  h1: {}\n h2: {}\n", "are indented"),
        ("hosts: {h1: {}}\n  h2: {}\n", "are indented"),
    ],
)
def test_what_is_wrong_with_the_blanks_is_said(text: str, said: str) -> None:
    (line,) = mistakes(text)
    assert said in line


def test_the_example_is_valid_and_shows_every_key() -> None:
    found = inventory.load(str(EXAMPLE))
    assert found.hosts["gh200-03"].address == "10.20.0.103"
    assert found.hosts["h100-07"].serves == "llama-70b"
    assert [hop.name for hop in found.hosts["edge-1"].jump] == ["bastion"]
    assert found.hosts["edge-1"].sudo
    assert not found.hosts["bastion"].sudo
    assert len(found.groups["gh200"]) == 16
    text = EXAMPLE.read_text()
    from fleetmem.controller.hosts import inventory_schema as schema

    for model in (schema.File, schema.Keys, schema.GroupKeys, schema.HostKeys):
        for key in model.model_fields:
            assert f"{key}:" in text, key


def test_a_host_has_every_setting() -> None:
    found = parse(
        """
hosts:
  a:
    address: "[fd00::1]"
    port: 2222
    user: ops
    identity: [k1, ~/k2, /k3]
    known_hosts: kh
    jump: [b, root@c:22]
    python: /usr/bin/python3.11
    sudo: true
    connect_timeout: 500ms
    labels: {rack: 7, gpu: H100, spare: true}
  b: {}
"""
    )
    a = found.hosts["a"]
    assert a == Host(
        name="a",
        address="fd00::1",
        port=2222,
        user="ops",
        identities=("/etc/x/k1", os.path.expanduser("~/k2"), "/k3"),
        known_hosts="/etc/x/kh",
        jump=(Host("b", "b"), Host("root@c:22", "c", 22, "root")),
        python="/usr/bin/python3.11",
        sudo=True,
        connect_timeout_seconds=0.5,
        labels=(("rack", "7"), ("gpu", "H100"), ("spare", "true")),
    )


def test_later_and_more_specific_wins() -> None:
    found = parse(
        """
defaults: {user: d, port: 1, labels: {a: d, b: d}}
groups:
  one: {hosts: "n[1-4]", user: one, labels: {a: one}}
  two: {hosts: [n2, n3], user: two, sudo: true}
hosts:
  n3: {user: single}
  "n[3-4]": {user: set, port: 4}
  n9: {port: null}
"""
    )
    users = {name: host.user for name, host in found.hosts.items()}
    assert users == {"n1": "one", "n2": "two", "n3": "single", "n4": "set", "n9": "d"}
    assert found.hosts["n3"].port == 4
    assert found.hosts["n1"].port == 1
    assert found.hosts["n9"].port is None
    assert dict(found.hosts["n1"].labels) == {"a": "one", "b": "d"}
    assert found.hosts["n2"].groups == ("one", "two")
    assert list(found.hosts) == ["n1", "n2", "n3", "n4", "n9"]
    assert found.template.user == "d"


def test_every_mistake_is_told_at_once_with_its_place() -> None:
    lines = mistakes(
        """defaults: {usr: root, port: 70000, sudo: yes}
groups:
  all: {hosts: a}
  g: {hosts: [1, "x[1-999999999]", "y[2"], prot: 3}
  k: {labels: {a: [1]}}
hosts:
  a: {port: 0755, address: "10.0.0.1:22", transport: sssh}
  a: {}
  'b*': {}
  c: {jump: [a, b, c], connect_timeout: 1:30, command: [x], user: 5}
  d: 4
hots: {}
"""
    )
    assert lines == [
        'i.yaml:1:12: defaults.usr: unknown key – did you mean "user"?',
        "i.yaml:1:29: defaults.port: should be less than or equal to 65535",
        'i.yaml:1:42: defaults.sudo: true or false is expected – write true, "yes" is text here',
        "i.yaml:3:3: groups.all: a group name is made of letters, digits, - _ . and is not all, "
        "file or run",
        "i.yaml:4:15: groups.g.hosts[0]: text is expected – put it in quotes",
        'i.yaml:4:18: groups.g.hosts[1]: "x[1-999999999]" names 999999999 hosts, at most 100000 '
        "are taken",
        'i.yaml:4:36: groups.g.hosts[2]: "y[2": a bracket does not close',
        'i.yaml:4:44: groups.g.prot: unknown key – did you mean "port"?',
        'i.yaml:5:6: groups.k: "hosts" is missing',
        'i.yaml:5:15: groups.k.labels: the label "a" needs one word',
        "i.yaml:7:13: hosts.a.port: a whole number is expected – write 755",
        "i.yaml:7:28: hosts.a.address: the port stands in a key of its own: port",
        "i.yaml:7:54: hosts.a.transport: should be 'ssh', 'local' or 'command'",
        'i.yaml:8:3: hosts: the key "a" is already set in line 7 – keep one of them',
        "i.yaml:9:3: hosts['b*']: \"b*\": patterns belong into -H, an inventory lists names",
        "i.yaml:10:13: hosts.c.jump: at most 2 hops are possible",
        "i.yaml:10:41: hosts.c.connect_timeout: seconds are expected, such as 10 or 10s",
        'i.yaml:10:56: hosts.c.command: one of the words must contain "{command}"',
        "i.yaml:10:67: hosts.c.user: text is expected – put it in quotes",
        "i.yaml:11:6: hosts.d: keys and values are expected",
        'i.yaml:12:1: hots: unknown key – did you mean "hosts"?',
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: [1\nb: 2", "i.yaml:2:2: "),
        ("a:\n\t- b", "i.yaml:2:1: "),
        ("[]", "i.yaml:1:1: keys and values are expected"),
        ("5", "i.yaml:1:1: keys and values are expected"),
        ("hosts: {}\n---\nhosts: {}", "i.yaml:2:1: expected a single document"),
        ("hosts: !!python/object:os.system x", "i.yaml:1:8: hosts: tags such as"),
        ("hosts: &a {x: *a}", "i.yaml:1:8: hosts.x: an alias that contains itself"),
        ("hosts: {? [a] : {}}", "i.yaml:1:11: hosts: a key must be one word"),
        ("hosts: \x00", "i.yaml:1:1: unacceptable character"),
        ("[" * 3000, "i.yaml:1:"),
        ("hosts: {<<: {}}", "i.yaml:1:9: hosts['<<']: "),
        ("hosts: {a: {transport: command}}", "i.yaml:1:12: hosts.a: a has transport: command"),
        ("hosts: {5: {}}", 'i.yaml:1:9: hosts.5: "5": a host name is more than a number'),
        ("hosts: {a: {user: -oX}}", "i.yaml:1:19: hosts.a.user: one word is expected"),
        ("hosts: {a: {address: -oX}}", "i.yaml:1:22: hosts.a.address: one word"),
        ("hosts: {a: {address: root@x}}", "i.yaml:1:22: hosts.a.address: the user stands"),
        ("hosts: {a: {labels: [x]}}", "i.yaml:1:21: hosts.a.labels: keys and values"),
        ("hosts: {a: {identity: []}}", "i.yaml:1:23: hosts.a.identity: text or a list"),
        ("hosts: {a: {port: '22'}}", "i.yaml:1:19: hosts.a.port: a whole number is expected – "),
        ("hosts: {a: {jump: 'u@h:x'}}", 'i.yaml:1:19: hosts.a.jump: "u@h:x": "x" is not a port'),
    ],
)
def test_one_mistake_is_one_clear_line(text: str, line: str) -> None:
    lines = mistakes(text)
    assert len(lines) == 1
    assert lines[0].startswith(line)


def test_ways_that_cannot_be_gone() -> None:
    lines = mistakes(
        """hosts:
  b: {jump: c}
  c: {jump: b}
  d: {jump: [e]}
  e: {jump: f}
  f: {jump: g}
  g: {}
  h: {jump: h}
"""
    )
    assert [line.split(": ", 2)[2] for line in lines] == [
        "the way to b runs in a circle",
        "the way to c runs in a circle",
        "at most 2 hops are possible, these are 3: g → f → e",
        "the way to h runs in a circle",
    ]


def test_a_jump_host_does_not_jump_over_itself() -> None:
    found = parse("defaults: {jump: gate}\nhosts: {gate: {user: ops}, a: {}, b: {jump: null}}")
    assert found.hosts["gate"].jump == ()
    assert [hop.user for hop in found.hosts["a"].jump] == ["ops"]
    assert found.hosts["b"].jump == ()
    assert [hop.name for hop in found.template.jump] == ["gate"]


def test_a_jump_host_brings_its_own_way() -> None:
    found = parse("hosts: {a: {jump: b}, b: {jump: c}, c: {}}")
    assert [hop.name for hop in found.hosts["a"].jump] == ["c", "b"]


def test_one_host_serves_one_model() -> None:
    text = "groups: {a: {hosts: x, serves: m}, b: {hosts: x, serves: n}}"
    assert "already serves" in mistakes(text)[0]
    found = parse("groups: {a: {hosts: 'x[1-2]', serves: m}, b: {hosts: x1}}")
    assert found.hosts["x1"].serves == "m"


def test_yaml_surprises_are_text() -> None:
    found = parse("hosts: {no: {}, on: {labels: {a: 1:30, b: 0755, c: 2024-01-01, d: off}}}")
    assert list(found.hosts) == ["no", "on"]
    assert dict(found.hosts["on"].labels) == {
        "a": "1:30",
        "b": "0755",
        "c": "2024-01-01",
        "d": "off",
    }


def test_files_that_cannot_be_read_are_one_line(tmp_path: Path) -> None:
    def message(path: str) -> str:
        with pytest.raises(InventoryInvalid) as caught:
            inventory.load(path)
        return caught.value.message

    assert message(str(tmp_path)) == f"{tmp_path}: is a directory, not a file"
    assert message(f"{tmp_path}/gone") == f"{tmp_path}/gone: no such file or directory"
    latin = tmp_path / "latin"
    latin.write_bytes(b"hosts:\n  a: {user: J\xf6}\n")
    assert message(str(latin)) == f"{latin}:2:14: not UTF-8"
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(9 * 1024 * 1024)
    assert message(str(large)) == f"{large}: is larger than 8 MiB"
    marked = tmp_path / "marked"
    marked.write_bytes(b"\xef\xbb\xbfhosts: {a: {}}\n")
    assert list(inventory.load(str(marked)).hosts) == ["a"]
    empty = tmp_path / "empty"
    empty.write_text("# nothing\n")
    assert inventory.load(str(empty)).hosts == {}


def test_a_billion_laughs_end_at_once() -> None:
    lines = ["a: &a [x,x,x,x,x,x,x,x,x,x]"]
    for before, now in zip("abcdefghi", "bcdefghij", strict=True):
        lines.append(f"{now}: &{now} [" + ",".join([f"*{before}"] * 10) + "]")
    begin = time.process_time()
    assert any("more than 100 aliases" in line for line in mistakes("\n".join(lines)))
    assert time.process_time() - begin < 20


def test_many_mistakes_are_cut() -> None:
    text = "hosts:\n" + "".join(f"  h{n}: {{prot: 1}}\n" for n in range(70))
    lines = mistakes(text)
    assert len(lines) == 51
    assert lines[-1] == "i.yaml: and 20 more"


@settings(deadline=None, max_examples=150)
@given(st.text(alphabet=" \n\t{}[]:,-&*!|>'\"#%@`ab10?~<=.\\é\x00", max_size=60))
def test_any_text_is_an_inventory_or_clear_lines(text: str) -> None:
    try:
        inventory.parse(text, "i.yaml")
    except InventoryInvalid as error:
        for line in error.message.splitlines():
            assert line.startswith("i.yaml:")


# Where the file is.


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLEETMEM_INVENTORY", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(inventory, "MACHINE_FILE", str(tmp_path / "etc" / "inventory.yaml"))
    return tmp_path


def write(path: Path, name: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"hosts: {{{name}: {{}}}}\n")
    path.chmod(0o644)
    return str(path)


def test_where_the_file_is_looked_for(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert inventory.find() == (None, ())
    machine = write(places / "etc" / "inventory.yaml", "machine")
    assert inventory.find() == (machine, ())
    own = write(places / "config" / "fleetmem" / "inventory.yaml", "own")
    assert inventory.find() == (own, ())
    write(places / "inventory.yaml", "project")
    assert list(inventory.load().hosts) == ["project"]
    monkeypatch.setenv("FLEETMEM_INVENTORY", write(places / "env.yaml", "env"))
    assert list(inventory.load().hosts) == ["env"]
    assert list(inventory.load(write(places / "i.yaml", "given")).hosts) == ["given"]


def test_a_project_file_that_others_can_write_is_passed_over(places: Path) -> None:
    own = write(places / "config" / "fleetmem" / "inventory.yaml", "own")
    write(places / "inventory.yaml", "project")
    (places / "inventory.yaml").chmod(0o666)
    path, warnings = inventory.find()
    assert path == own
    assert warnings == (
        "./inventory.yaml is ignored: others can write it; name it with -i to use it",
    )
    found = inventory.load()
    assert found.warnings == warnings
    assert list(found.hosts) == ["own"]
    assert list(inventory.load("inventory.yaml").hosts) == ["project"]


def test_no_file_is_an_empty_inventory(places: Path) -> None:
    assert inventory.load() == Inventory()
