"""Commands as data: written once, read back exactly, completed once, folded over hosts."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetmem.controller.answer.step import (
    Reach,
    Step,
    complete,
    completed,
    folded,
    next_step,
    read,
)
from fleetmem.controller.render.kit.line import cells, plain
from fleetmem.controller.render.kit.next_steps import MAX_NEXT, next_lines, next_of_hosts

WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), min_size=1, max_size=12)
VALUES = WORDS.filter(lambda text: not text.startswith("-"))
OPTIONS = st.tuples(st.sampled_from(["--gpu", "--cache", "--phase", "--dry-run"])) | st.tuples(
    st.sampled_from(["--gpu", "--cache"]), VALUES, VALUES
)


@given(st.none() | VALUES, st.lists(OPTIONS, max_size=4, unique_by=lambda one: one[0]))
def test_reading_is_the_inverse_of_writing(
    hosts: str | None, options: list[tuple[str, ...]]
) -> None:
    step = Step(("reclaim",), hosts, tuple(options))
    assert read(str(step)) == step
    words = shlex.split(str(step))
    assert words[:2] == ["fleetmem", "reclaim"]
    assert words.count("-H") == (hosts is not None) + sum("-H" in one for one in options)


def test_a_value_that_looks_like_an_option_keeps_its_name() -> None:
    step = next_step("logs", "a1", grep="-x")
    assert str(step) == "fleetmem logs -H a1 --grep=-x"
    assert read(str(step)) == step


@pytest.mark.parametrize(
    "text",
    [
        "systemctl stop vllm",
        "fleetmem hosts | head",
        "fleetmem hosts 'unclosed",
        "",
        "sudo fleetmem",
    ],
)
def test_what_is_not_one_command_of_ours_stays_as_it_is(text: str) -> None:
    assert read(text) is None
    assert completed(text, Reach("a.yaml")) == text


def test_each_option_of_the_reach_is_added_once() -> None:
    both = Reach("my lab.yaml", ask_sudo_password=True)
    once = complete(next_step("snapshot", "a1"), both)
    assert str(once) == "fleetmem snapshot -i 'my lab.yaml' --ask-sudo-password -H a1"
    assert complete(once, both) == once
    assert complete(next_step("snapshot", "a1"), Reach()) == next_step("snapshot", "a1")


def test_commands_that_reach_no_host_stay_as_they_are() -> None:
    for text in ("fleetmem runs list", "fleetmem diff before after", "fleetmem playbooks list"):
        assert completed(text, Reach("a.yaml")) == text
    applied = "fleetmem reclaim -i a.yaml --apply 7f3c --yes"
    assert completed("fleetmem reclaim --apply 7f3c --yes", Reach("a.yaml")) == applied


def test_options_that_choose_a_log_go_with_commands_on_logs_only() -> None:
    reach = Reach(logs=(("--boot", "-1"), ("--user-unit-of", "ops")), engine="vllm")
    assert str(complete(next_step("logs", "a1", unit="u"), reach)) == (
        "fleetmem logs -H a1 --unit u --boot -1 --user-unit-of ops"
    )
    assert str(complete(next_step("audit startup", "a1", boot="0"), reach)) == (
        "fleetmem audit startup -H a1 --boot 0 --engine vllm --user-unit-of ops"
    )
    assert str(complete(next_step("audit startup", log="a.log"), reach)) == (
        "fleetmem audit startup --log a.log --engine vllm"
    )
    assert str(complete(next_step("snapshot", "a1"), reach)) == "fleetmem snapshot -H a1"


def test_equal_commands_of_several_hosts_are_one() -> None:
    rows = [(host, str(next_step("reclaim", host, gpu=0))) for host in ("a1", "a2", "a3")]
    rows += [("a2", "systemctl stop vllm"), ("a3", "systemctl stop vllm")]
    assert folded(rows) == [
        ("fleetmem reclaim -H 'a[1-3]' --gpu 0", ["a1", "a2", "a3"]),
        ("systemctl stop vllm", ["a2", "a3"]),
    ]
    shown = [plain(line) for line in next_of_hosts(rows, 3)]
    assert shown == [
        "  next   fleetmem reclaim -H 'a[1-3]' --gpu 0",
        "         systemctl stop vllm    # a[2-3]",
    ]


def test_a_host_named_like_an_option_value_is_not_replaced() -> None:
    rows = [(host, str(next_step("logs", host, unit="a1"))) for host in ("a1", "a2")]
    assert folded(rows) == [("fleetmem logs -H 'a[1-2]' --unit a1", ["a1", "a2"])]


def test_steps_are_drawn_once_and_capped_once() -> None:
    steps = [next_step("snapshot", f"a{number}") for number in range(MAX_NEXT + 3)]
    lines = [plain(line) for line in next_lines([*steps, *steps])]
    assert len(lines) == MAX_NEXT + 1
    assert lines[-1].strip() == "… 3 more; -o json lists all"
    assert next_lines([]) == []


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_long_command_is_broken_so_that_a_shell_joins_it(width: int) -> None:
    step = next_step("reclaim", "gh200-[01-16]", cache=("/models/deepseek", "/models/kimi"),
                     post_check="http://127.0.0.1:8000/health", yes=True)  # fmt: skip
    lines = [plain(line) for line in next_lines([step], width)]
    assert all(cells(line) <= width for line in lines)
    assert all(line.endswith(" \\") for line in lines[:-1])
    pasted = "\n".join([lines[0].removeprefix("  next"), *lines[1:]]).replace("\\\n", "")
    assert shlex.split(pasted) == shlex.split(str(step))
