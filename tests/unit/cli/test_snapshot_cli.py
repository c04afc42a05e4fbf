"""The command line of snapshot, diff, run, playbooks and reclaim --cache: usage and formats."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fleetmem.controller.cli import main
from fleetmem.controller.cli.kit.values import host_paths
from fleetmem.controller.rules import playbook as books


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A history of this test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["snapshot"], "--hosts"),
        (["snapshot", "-H", "localhost", "/models"], "write --files before paths"),
        (["snapshot", "-H", "localhost", "--phase", "a b"], "is not a phase name"),
        (["snapshot", "-H", "localhost", "--no-files", "--files", "/x"], "cannot be combined"),
        (["snapshot", "-H", "localhost", "--numa-maps", "201"], "201 is not in the range"),
        (["snapshot", "-H", "localhost", "--follow-start", "v*"], "is not a unit name"),
        (["snapshot", "-H", "x", "--follow-start", "v", "--phase", "a"], "remove --phase"),
        (["snapshot", "-H", "localhost", "--follow-timeout", "9s"], "needs --follow-start"),
        (["reclaim", "-H", "localhost", "/models"], "write --cache before paths"),
        (["reclaim", "-H", "localhost", "--cache", "models"], "use an absolute path on the hosts"),
        (
            ["reclaim", "-H", "localhost", "--cache", "/m", "--gpu", "0"],
            "cannot be combined with --gpu",
        ),
        *(
            ([*command, path], said)
            for command in (
                ["reclaim", "-H", "localhost", "--cache"],
                ["reclaim", "-H", "localhost", "--cache", "/m"],
                ["snapshot", "-H", "localhost", "--files"],
            )
            for path, said in (
                ("", "use an absolute path on the hosts"),
                ("~/m", "use an absolute path on the hosts"),
                ("m\udcff", "use an absolute path on the hosts"),
                ("hex:", "use an absolute path on the hosts"),
                ("hex:6d", "use an absolute path on the hosts"),
                ("hex:2f0", "hex: needs the path's bytes"),
            )
        ),
        (["reclaim", "-H", "localhost", "--cache-mode", "drop"], "goes with --cache"),
        (["reclaim", "-H", "localhost", "--cache", "--post-check-timeout", "9s"], "goes with"),
        (["reclaim", "-H", "localhost", "--post-check", "http://127.0.0.1/"], "goes with --cache"),
        *(
            (["reclaim", "-H", "localhost", "--cache", "--post-check", url], said)
            for url, said in (
                ("http://10.0.0.1:8000/health", "a host queries only itself"),
                ("http://gh200-01:8000/health", "a host queries only itself"),
                ("http://:8000/health", "a host queries only itself"),
                ("https://127.0.0.1/health", "an http URL without a user"),
                ("http://a@127.0.0.1/health", "an http URL without a user"),
                ("http://127.0.0.1:99999/", "is not a URL"),
                ("http://[::1/", "is not a URL"),
                ("http://127.0.0.1/\r\nX: y", "an http URL without a user"),
                ("http://127.0.0.1/a b", "an http URL without a user"),
                ("http://[::ffff:127.0.0.1]/", "a host queries only itself"),
            )
        ),
        (["run", "startup", "-H", "localhost"], "reads logs, not readings"),
        (["run", "no-such", "-H", "localhost"], "there is no playbook 'no-such'"),
        (["run", "zz9", "-H", "localhost"], "playbooks list; hosts are named with -H"),
        (["playbooks", "show", "memroy"], "there is no playbook 'memroy'"),
        (["diff", "aaaa", "bbbb"], "is not a recorded run or phase"),
    ],
)
def test_usage_is_one_clear_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err


def test_a_path_that_is_no_utf_8_travels_as_its_bytes() -> None:
    """What a shell hands over, and the form that the program prints; each once."""
    typed = os.fsdecode(b"/m/\xff*")
    assert host_paths("--cache", [typed, "hex:2f6d2fff2a", "/m/é", "hex:2f6d"]) == (
        "hex:2f6d2fff2a",
        "/m/é",
        "hex:2f6d",
    )


def test_playbooks_list_has_every_shipped_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["playbooks", "list", "-o", "json"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["playbooks"]
    assert {"hbm-page-cache", "memory", "startup"} <= {row["name"] for row in rows}
    assert all(row["rules"] > 0 for row in rows)


def test_playbooks_show_says_what_a_rule_compares(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["playbooks", "show", "hbm-page-cache"]) == 0
    out = capsys.readouterr().out
    assert "each numa.nodes where kind is gpu: file_bytes above 1.0 GiB" in out
    assert max(map(len, out.splitlines())) <= 100


def test_playbooks_check_names_mistakes_and_ends_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "playbook: mine\nabout: x\nprobes: [numa.nodes]\nrules:\n"
        "  - {id: a, each: numa.nodes, field: fre_bytes, above: 1, severity: info, say: x}\n"
    )
    assert main(["playbooks", "check", str(file)]) == 2
    expected = f'{file}:5:38: rules[0].field: the rows have no field "fre_bytes" – did you mean'
    assert expected in capsys.readouterr().out
    assert main(["playbooks", "check", str(file), "-o", "json"]) == 2
    (row,) = json.loads(capsys.readouterr().out)["playbooks"]
    assert (row["line"], row["column"]) == (5, 38)


def test_playbooks_check_without_a_file_checks_all_that_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Playbooks, lists of names, engines, and the user's own engines."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "fleetmem" / "engines"
    folder.mkdir(parents=True)
    mine = folder / "mine.yaml"
    pattern = "{id: a, find: ready, match: '%s', step: ready, tests: [{line: ready, gives: {}}]}"
    mine.write_text(f"engine: mine\nabout: x\npatterns:\n  - {pattern % 'ready'}\n")
    assert main(["playbooks", "check"]) == 0
    out = capsys.readouterr().out
    shipped = Path(books.FOLDER)
    names = {one.name for one in (*shipped.glob("*.yaml"), *shipped.glob("engines/*.yaml"))}
    assert {"memory.yaml", "protect.yaml", "vllm.yaml"} <= names
    assert names | {"mine.yaml"} == set(out.partition("valid:")[2].replace(",", " ").split())
    mine.write_text(f"engine: mine\nabout: x\npatterns:\n  - {pattern % 'started'}\n")
    assert main(["playbooks", "check"]) == 2
    assert f"{mine}:4:" in capsys.readouterr().out
    mine.write_text("playbook: mine\n")  # no engine: audit startup could not load it
    assert main(["playbooks", "check"]) == 2
    assert f"{mine}:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("protect:\n  - {what: x, com: [a]}\n", ":2:"),
        ("workers:\n  - {engine: e, titles: ['*'], tests: [a]}\n", ":2:26: workers[0].titles[0]"),
        ("workers:\n  - {engine: e, titles: [abcd], tests: [b]}\n", "workers[0].tests[0]"),
        (
            "workers:\n  - {engine: e, titles: ['abcd*'], tests: [], others: [abcde]}\n",
            "workers[0].others[0]",
        ),
    ],
)
def test_lists_of_names_are_checked(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "names.yaml"
    file.write_text(text)
    assert main(["playbooks", "check", str(file)]) == 2
    printed = capsys.readouterr().out
    assert printed.startswith(f"{file}:2:")
    assert said in printed
