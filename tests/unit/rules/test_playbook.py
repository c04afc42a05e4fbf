"""Playbooks are checked in full before any host is asked; every mistake has its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetmem.controller.errors import PlaybookInvalid, UsageError
from fleetmem.controller.rules import checking, playbook
from fleetmem.controller.rules.playbook_files import problems_of

HEAD = "playbook: mine\nabout: A test.\nprobes: [numa.nodes]\nrules:\n"
RULE = """\
  - id: full
    each: numa.nodes
    where: {kind: gpu}
    field: file_bytes
    above: 1GiB
    severity: warn
    say: "{file_bytes} on NUMA node {id}"
"""


def said(text: str) -> list[str]:
    """The problems of *text*, one a line."""
    document, found = checking.check(text.encode(), "p.yaml")
    assert (found is None) == bool(document.problems)
    return [str(one) for one in document.sorted_problems()]


def test_a_sound_playbook_is_read_as_written() -> None:
    document, found = checking.check((HEAD + RULE).encode())
    assert not document.problems
    assert found is not None
    assert found.probes == {"numa.nodes": {}}
    rule = found.rules[0]
    assert rule.name == "mine/full"
    assert rule.condition == playbook.Condition("file_bytes", "above", float(1 << 30))
    assert rule.where == (playbook.Condition("kind", "one_of", ["gpu"]),)


def test_every_shipped_playbook_is_sound() -> None:
    names = [one.name for one in playbook.listed()]
    assert {"hbm-page-cache", "memory", "startup"} <= set(names)
    for one in playbook.listed():
        assert problems_of(one.file) == []


@pytest.mark.parametrize("folder", ["", "engines"])
def test_every_file_beside_them_is_sound_too(folder: str) -> None:
    files = sorted((Path(playbook.FOLDER) / folder).glob("*.yaml"))
    assert files
    for file in files:
        assert problems_of(str(file)) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            HEAD + RULE.replace("numa.nodes\n    where", "numa.node\n    where"),
            'p.yaml:6:11: rules[0].each: no reading has rows called "numa.node" – '
            'did you mean "numa.nodes"?',
        ),
        (
            HEAD + RULE.replace("field: file_bytes", "field: file_byte"),
            'p.yaml:8:12: rules[0].field: the rows have no field "file_byte" – '
            'did you mean "file_bytes"?',
        ),
        (
            HEAD + RULE.replace("kind: gpu", "knd: gpu"),
            'p.yaml:7:18: rules[0].where.knd: the rows have no field "knd" – did you mean "kind"?',
        ),
        (
            HEAD + RULE.replace("{id}", "{nope}"),
            'p.yaml:11:10: rules[0].say: the rows have no field "nope"',
        ),
        (
            HEAD + RULE.replace("{id}", "{id:x}"),
            "p.yaml:11:10: rules[0].say: {id}: a plain name is expected, without formatting",
        ),
        (
            HEAD + RULE + "    below: 3\n",
            "p.yaml:5:5: rules[0]: above and below: keep one",
        ),
        (
            HEAD + RULE.replace("above: 1GiB", "above: lots"),
            "p.yaml:9:12: rules[0].above: a number or a size such as 64MiB, 1GiB or 5% is expected",
        ),
        (
            HEAD.replace("[numa.nodes]", "[numa.nodes, gpu.wate]") + RULE,
            'p.yaml:3:22: probes[1]: there is no probe "gpu.wate" – did you mean "gpu.wait"?',
        ),
        (
            HEAD.replace("[numa.nodes]", "[numa.nodes, signal.send]") + RULE,
            "p.yaml:3:22: probes[1]: signal.send changes hosts: playbooks call probes only",
        ),
        (
            HEAD.replace("[numa.nodes]", "[numa.nodes, gpu.devices: {path: 1}]") + RULE,
            "p.yaml:3:36: probes[1].gpu.devices.path: gpu.devices takes no path – it takes:"
            " nothing",
        ),
        (
            HEAD.replace("numa.nodes", "host.facts") + RULE,
            "p.yaml:6:11: rules[0].each: needs numa.nodes, which this playbook does not call",
        ),
        (
            HEAD + RULE + RULE,
            'p.yaml:12:9: rules[1].id: the id "full" is used before',
        ),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, expected: str) -> None:
    assert said(text)[0] == expected


def test_all_mistakes_come_at_once() -> None:
    text = HEAD + RULE.replace("id: full", "id: Full").replace("warn", "warm") + "    levl: 3\n"
    found = said(text)
    assert [line.split(": ")[1] for line in found] == [
        "rules[0].id",
        "rules[0].severity",
        "rules[0].levl",
    ]


def test_an_expression_is_no_comparator() -> None:
    found = said(HEAD + RULE.replace("above: 1GiB", "when: file_bytes > 1"))
    assert found[0].startswith("p.yaml:9:5: rules[0].when: unknown key")


def test_grows_and_unlike_group_stand_in_the_rule_only() -> None:
    text = HEAD + RULE.replace("{kind: gpu}", "{free_bytes: {grows: 1GiB}}")
    assert said(text) == [
        "p.yaml:7:25: rules[0].where.free_bytes: grows belongs to the rule itself, not to where"
    ]


def test_a_path_into_a_reading_may_be_judged() -> None:
    text = (
        "playbook: mine\nabout: A.\nprobes: [gpu.processes]\nrules:\n"
        "  - {id: dead, each: gpu.processes.gpus.processes, where: {state: dead},\n"
        "     field: used_bytes, above: 1MiB, severity: warn, say: '{pid} keeps {used_bytes}'}\n"
    )
    assert said(text) == []


def test_unknown_names_are_answered_with_a_near_one() -> None:
    with pytest.raises(UsageError) as caught:
        playbook.load("hbm-page-cash")
    assert caught.value.hint == 'did you mean "hbm-page-cache"?'


def test_a_broken_file_ends_in_its_own_error(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("playbook: x\nplaybook: y\n")
    with pytest.raises(PlaybookInvalid) as caught:
        playbook.load(str(file))
    assert f"{file}:2:1" in caught.value.message


def test_calls_of_several_playbooks_are_joined() -> None:
    one = playbook.Playbook("a", "", "a", {"pagecache.files": {"paths": ["/m"]}, "numa.nodes": {}})
    two = playbook.Playbook("b", "", "b", {"pagecache.files": {"paths": ["/n", "/m"]}})
    assert playbook.call_arguments([one, two]) == {
        "pagecache.files": {"paths": ["/m", "/n"]},
        "numa.nodes": {},
    }


@pytest.mark.parametrize("name", ["memory", "hbm-page-cache"])
def test_a_playbook_that_is_kept_is_the_one_that_was_checked(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = playbook.path_of(name)
    _, found = checking.read(path)
    assert playbook.load(name) == found
    monkeypatch.setattr(checking, "check", None)  # whoever asks now gets what was kept
    assert playbook.load(name) == found


def test_every_comparator_survives_being_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    words = ["above: 1GiB", "at_most: 5", "equals: 3", "one_of: [1, 2]", "none_of: [1]",
             "contains: x", "matches: 'x*'", "present: true", "grows: 1MiB",
             "unlike_group: true", "share_above: {of: total_bytes, percent: 5%}"]  # fmt: skip
    rules = "".join(
        RULE.replace("- id: full", f"- id: r{n}").replace("above: 1GiB", word)
        for n, word in enumerate(words)
    )
    file = tmp_path / "mine.yaml"
    file.write_text(HEAD + rules)
    first, second = playbook.load(str(file)), playbook.load(str(file))
    _, found = checking.read(str(file))
    assert first == second == found
    assert len(first.rules) == len(words)
