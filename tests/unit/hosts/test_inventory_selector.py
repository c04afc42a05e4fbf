"""The selector: what each term means, and that a term without a match is never ignored."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetmem import Fleet
from fleetmem.controller.errors import FleetError, UsageError
from fleetmem.controller.hosts import inventory, selector
from fleetmem.controller.hosts.address import Address, parse_target
from fleetmem.controller.hosts.host import Host, Inventory

FLEET = inventory.parse(
    """
defaults: {user: root, identity: /k, port: 2200}
groups:
  gh200: {hosts: "gh200-[01-08]"}
  h100: {hosts: [h100-1, h100-2], sudo: true}
  odd: {hosts: "gh200-[01,03,05,07]"}
hosts:
  gate: {address: 10.0.0.1, user: ops}
""",
    "/x/i.yaml",
)
NONE = Inventory()


def lookup(run: str, outcome: str) -> Iterable[str]:
    assert run == "s4k2"
    return {"failed": ["gh200-02", "root@10.9.9.9:22"], "": ["gh200-01"]}.get(outcome, [])


def named(expression: str, exclude: str = "", fleet: Inventory = FLEET) -> str:
    hosts = selector.resolve(expression, fleet, exclude, lookup)
    return " ".join(host.name for host in hosts)


@pytest.mark.parametrize(
    ("expression", "exclude", "names"),
    [
        ("gh200-01", "", "gh200-01"),
        ("gh200-[01-02],h100-1", "", "gh200-01 gh200-02 h100-1"),
        ("h100-1,gh200-01,h100-1", "", "h100-1 gh200-01"),
        ("h100-*", "", "h100-1 h100-2"),
        ("gh200-0[1-2]", "", "gh200-01 gh200-02"),
        ("gh200-?1", "", "gh200-01"),
        ("gh*-[01-02]", "", "gh200-01 gh200-02"),
        ("@h100", "", "h100-1 h100-2"),
        ("@all", "@gh200,gate", "h100-1 h100-2"),
        ("@all,!@gh200,!gate", "", "h100-1 h100-2"),
        ("!@gh200", "", "h100-1 h100-2 gate"),
        ("@gh200,&@odd", "", "gh200-01 gh200-03 gh200-05 gh200-07"),
        ("&@odd,!gh200-0[1-3]", "", "gh200-05 gh200-07"),
        ("!gh200-01,gh200-[01-02]", "", "gh200-02"),
        ("@gh200,&@odd,&gh200-0[1-4]", "gh200-01", "gh200-03"),
        ("h100-1", "!h100-2", "h100-1"),
        ("@run:s4k2:failed", "", "gh200-02 root@10.9.9.9:22"),
        ("@run:s4k2", "", "gh200-01"),
        ("@odd", "@run:s4k2:partial", "gh200-01 gh200-03 gh200-05 gh200-07"),
        ("@odd", "@run:s4k2", "gh200-03 gh200-05 gh200-07"),
        ("localhost", "", "localhost"),
        ("root@1.2.3.[4-6]", "root@1.2.3.4,1.2.3.6", "root@1.2.3.5"),
    ],
)
def test_terms(expression: str, exclude: str, names: str) -> None:
    assert named(expression, exclude) == names


@pytest.mark.parametrize(
    ("expression", "exclude", "code", "words"),
    [
        ("gh20-01", "", "no_hosts_match", 'did you mean "gh200-01"?'),
        ("gh200-*,zz*", "", "no_hosts_match", "/x/i.yaml"),
        ("@h10", "", "no_hosts_match", 'did you mean "@h100"?'),
        ("@nope", "", "no_hosts_match", "@gh200, @h100, @odd"),
        ("h100", "", "no_hosts_match", "a group is written @h100"),
        ("qqq", "", "no_hosts_match", "user@qqq"),
        ("@all", "gh200-1", "no_hosts_match", "gh200-1"),
        ("@all,!zz*", "", "no_hosts_match", "zz*"),
        ("@all", "root@9.9.9.9", "no_hosts_match", "root@9.9.9.9"),
        ("@odd", "@gh200", "no_hosts_match", "leaves no host"),
        ("@odd,&@h100", "", "no_hosts_match", "leaves no host"),
        ("@run:s4k2:ok", "", "no_hosts_match", '"ok"'),
        ("", "", "no_hosts_match", "no host is named"),
        ("x[1-100000000]", "", "range_too_large", "100000000"),
        ("root@x[1-100000000]", "", "range_too_large", "100000000"),
        ("a,,b", "", "usage_error", "empty"),
        ("!", "", "usage_error", "matches no host"),
        ("!!gate", "", "usage_error", "matches no host"),
        ("a b", "", "usage_error", "cannot stand"),
        ("a@b@c", "", "usage_error", "not a user name"),
        ("h:99999", "", "usage_error", "not a port"),
        ("h:x", "", "usage_error", "not a port"),
        ("u@", "", "usage_error", "matches no host"),
        ("-oProxyCommand=x", "", "usage_error", "matches no host"),
        ("u@-x", "", "usage_error", "matches no host"),
        ("@run:", "", "usage_error", "@run"),
        ("@file:", "", "usage_error", "@file"),
        ("@file:/no/such", "", "inventory_invalid", "/no/such: no such file"),
        ("[::1]x", "", "usage_error", "after ]"),
        ("x:1:2", "", "usage_error", "neither"),
    ],
)
def test_a_term_that_matches_nothing_is_said(
    expression: str, exclude: str, code: str, words: str
) -> None:
    with pytest.raises(FleetError) as caught:
        named(expression, exclude)
    error = caught.value
    assert error.code == code
    assert error.exit_code == 2
    assert words in f"{error.message} {error.hint}"
    assert len(error.message.splitlines()) == 1


def one(expression: str, fleet: Inventory = FLEET) -> Host:
    (host,) = selector.resolve(expression, fleet)
    return host


def test_what_the_inventory_says_of_an_ad_hoc_host_is_not_lost() -> None:
    gate = one("root@gate:22")
    assert (gate.name, gate.address, gate.user, gate.port) == ("gate", "10.0.0.1", "root", 22)
    assert gate.identities == ("/k",)
    assert one("ops@h100-1").sudo
    assert one("gate:23").user == "ops"


def test_an_ad_hoc_host_gets_the_defaults() -> None:
    host = one("ops@new.example")
    assert host == Host("ops@new.example", "new.example", 2200, "ops", ("/k",))
    assert one("new.example:22").user == "root"


def test_without_an_inventory_every_name_is_an_ssh_host() -> None:
    assert one("box", NONE) == Host("box", "box")
    assert one("root@box:22", NONE) == Host("root@box:22", "box", 22, "root")
    assert one("root@[fd00::1]:22", NONE) == Host("root@[fd00::1]:22", "fd00::1", 22, "root")
    assert one("::1", NONE) == Host("[::1]", "::1")
    assert one("[fe80::1%eth0]:9", NONE) == Host("[fe80::1%eth0]:9", "fe80::1%eth0", 9)
    assert named("root@10.0.0.[1-2]:9", fleet=NONE) == "root@10.0.0.1:9 root@10.0.0.2:9"
    for expression in ("@all", "gh*", "!x", "@g"):
        with pytest.raises(UsageError) as caught:
            named(expression, fleet=NONE)
        assert "there is no inventory" in caught.value.hint
        assert caught.value.hint.endswith("or localhost")


def test_localhost_is_the_local_transport_unless_listed() -> None:
    assert one("localhost", NONE) == Host("localhost", "localhost", transport="local")
    assert one("localhost").transport == "local"
    assert one("root@localhost").transport == "ssh"
    assert one("localhost:22", NONE).transport == "ssh"
    listed = inventory.parse("hosts: {localhost: {port: 9}}", "i.yaml")
    assert one("localhost", listed) == Host("localhost", "localhost", 9)


def test_two_names_of_one_machine_are_spared_together() -> None:
    fleet = inventory.parse("hosts: {'a[1-2]': {address: 10.0.0.1}, b: {}}", "i.yaml")
    assert named("@all", "a1", fleet) == "b"
    assert named("@all,root@10.0.0.1:5", "root@10.0.0.1:5", fleet) == "a1 a2 b"
    assert named("@all,root@10.0.0.1:5", "10.0.0.1", fleet) == "b"


ALIASES = inventory.parse(
    """
defaults: {user: root}
groups:
  rack: {hosts: "gh200-0[1-3]"}
hosts:
  gh200-01: {address: 10.0.0.7}
  gh200-02: {address: "fd00::2", port: 2222}
  gh200-03: {}
  pod: {transport: command, command: [run, "{command}"]}
""",
    "/x/i.yaml",
)
NAMES = {"gh200-03": ["10.0.0.3", "fd00::3"], "gh200-03.example": ["10.0.0.3"]}
CONFIG = {"seven": ("10.0.0.7", 22), "two": ("FD00::2", 2222)}


def spared(expression: str, exclude: str, fleet: Inventory = ALIASES) -> str:
    """The names that stay, with a DNS and an ssh_config of the test's own."""
    hosts = selector.resolve(
        expression,
        fleet,
        exclude,
        lambda run, outcome: ["gh200-01", "root@10.0.0.8"],
        lambda host: CONFIG.get(host.address, (host.address, host.port or 22)),
        lambda name: frozenset(NAMES.get(name, ())),
    )
    return " ".join(host.name for host in hosts)


@pytest.mark.parametrize(
    ("expression", "exclude"),
    [
        ("root@10.0.0.7:22", "gh200-01"),
        ("ops@10.0.0.7", "gh200-01"),
        ("10.0.0.7:22", "gh200-01"),
        ("root@seven", "gh200-01"),
        ("root@[::ffff:10.0.0.7]", "gh200-01"),
        ("root@10.0.0.7", "@rack"),
        ("root@10.0.0.7", "gh200-0*"),
        ("root@10.0.0.7", "@run:x"),
        ("root@[fd00:0::2]", "gh200-02"),
        ("root@[fd00::2]:2222", "gh200-02"),
        ("root@two", "gh200-02"),
        ("ops@10.0.0.3", "gh200-03"),
        ("ops@[fd00::3]", "gh200-03"),
        ("ops@gh200-03.example", "gh200-03"),
        ("ops@GH200-03.", "gh200-03"),
        ("gh200-01", "root@10.0.0.7:22"),
        ("gh200-01", "ops@seven"),
        ("root@10.0.0.7", "ops@10.0.0.7"),
        ("root@localhost", "localhost"),
        ("root@127.0.0.1:2200", "localhost"),
    ],
)
@pytest.mark.parametrize("form", ["exclude", "drop", "alone"])
def test_an_excluded_host_is_spared_whatever_it_is_called(
    expression: str, exclude: str, form: str
) -> None:
    terms = f"root@10.9.9.9,{expression}"
    if form == "exclude":
        assert spared(terms, exclude) == "root@10.9.9.9"
    elif form == "drop":
        assert spared(f"!{exclude},{terms}", "") == "root@10.9.9.9"
    else:
        with pytest.raises(FleetError, match="leaves no host"):
            spared(expression, exclude)


@pytest.mark.parametrize(
    ("expression", "exclude", "left"),
    [
        ("root@[fd00::2]:2200", "gh200-02", "root@[fd00::2]:2200"),
        ("root@10.0.0.8", "gh200-01", "root@10.0.0.8"),
        ("gh200-0[1-2]", "gh200-02", "gh200-01"),
        ("box1,box2", "box1", "box2"),
        ("root@10.0.0.7:1,root@10.0.0.7:2", "root@10.0.0.7:1", "root@10.0.0.7:2"),
        ("pod,gh200-01", "gh200-01", "pod"),
    ],
)
def test_another_host_is_not_spared(expression: str, exclude: str, left: str) -> None:
    fleet = NONE if "box" in expression else ALIASES
    assert spared(expression, exclude, fleet) == left


def test_what_cannot_be_looked_up_is_not_taken_for_another_host() -> None:
    """gh200-09 may well be 10.0.0.9: nobody knows, so nothing is done to it."""
    fleet = inventory.parse("hosts: {gh200-09: {}}", "i.yaml")
    for exclude in ("gh200-09", "@all"):
        with pytest.raises(FleetError, match="cannot be looked up whether") as caught:
            spared("root@10.0.0.9", exclude, fleet)
        assert caught.value.exit_code == 2


def test_the_fleet_reads_the_person_s_ssh_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host seven\n  HostName 10.0.0.7\n  Port 2201\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "i.yaml"
    path.write_text("hosts: {seven: {}, eight: {address: 10.0.0.8}}")
    left = Fleet.load(str(path), "root@10.0.0.7:2201,root@10.0.0.8", "seven").hosts
    assert [host.name for host in left] == ["root@10.0.0.8"]


def test_names_read_back_as_selectors() -> None:
    for text in ("root@h:22", "root@[::1]:22", "[::1]", "h:22", "u.v-w@h"):
        host = one(text, NONE)
        assert one(host.name, NONE) == host


def test_a_host_file(tmp_path: Path) -> None:
    path = tmp_path / "hosts.txt"
    path.write_bytes(
        b"\xef\xbb\xbf# all of them\n\ngh200-[01-02]  # two\r\nroot@10.0.0.9:22,h100-1\n@odd\n"
    )
    assert named(f"@file:{path}") == (
        "gh200-01 gh200-02 root@10.0.0.9:22 h100-1 gh200-03 gh200-05 gh200-07"
    )
    assert named(f"@gh200,!@file:{path}") == "gh200-04 gh200-06 gh200-08"


def test_every_mistake_of_a_host_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "hosts.txt"
    path.write_text("gh200-99\n!gate\n[[\ngate\n@file:x\n")
    with pytest.raises(FleetError) as caught:
        named(f"@file:{path}")
    assert caught.value.code == "inventory_invalid"
    places = [line.split(": ")[0] for line in caught.value.message.splitlines()]
    assert places == [f"{path}:{n}:1" for n in (1, 2, 3, 5)]
    path.write_bytes(b"gate\n\xff\n")
    with pytest.raises(FleetError, match=f"{path}:2:1: not UTF-8"):
        named(f"@file:{path}")
    path.write_text("# nobody\n")
    with pytest.raises(FleetError, match="matches no host"):
        named(f"@file:{path}")


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("h", Address(None, "h", None)),
        ("u@h", Address("u", "h", None)),
        ("u@h:1", Address("u", "h", 1)),
        ("::1", Address(None, "::1", None)),
        ("u@::1", Address("u", "::1", None)),
        ("[::1]", Address(None, "::1", None)),
        ("u@[::1]:65535", Address("u", "::1", 65535)),
        ("h[1-2]:22", Address(None, "h[1-2]", 22)),
        ("svc$@h", Address("svc$", "h", None)),
    ],
)
def test_targets(text: str, target: Address) -> None:
    assert parse_target(text) == target
    assert parse_target(str(target)) == target


@given(st.text(alphabet="ab1-[],:@!&*?.%/ \n", max_size=25))
def test_any_text_names_hosts_or_is_refused(text: str) -> None:
    try:
        hosts = selector.resolve(text, FLEET, "", lambda run, outcome: [])
    except UsageError:
        return
    assert hosts
    assert len({host.name for host in hosts}) == len(hosts)
