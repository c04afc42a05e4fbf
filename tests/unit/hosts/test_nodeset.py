"""Node sets: counted before they are expanded, folded so that the text reads back."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetmem.controller.errors import RangeTooLarge, UsageError
from fleetmem.controller.hosts.nodeset import MAX_HOSTS, expand, fold, natural_key, split


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("gh200-[01-03]", ["gh200-01", "gh200-02", "gh200-03"]),
        ("gh200-[01,03],b", ["gh200-01", "gh200-03", "b"]),
        ("a[1-2]b[01-02]", ["a1b01", "a1b02", "a2b01", "a2b02"]),
        ("h[8-11]", ["h8", "h9", "h10", "h11"]),
        ("h[0-6/3]", ["h0", "h3", "h6"]),
        ("n[1-2].rack.example", ["n1.rack.example", "n2.rack.example"]),
        ("10.0.0.[1-2]", ["10.0.0.1", "10.0.0.2"]),
        ("a,a,a", ["a"]),
        ("n1[8-10]", ["n18", "n19", "n110"]),
        ("b, a", ["b", "a"]),
        ("x[1-2]*", ["x1*", "x2*"]),
    ],
)
def test_expand(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "a,,b",
        "a[1",
        "a]1",
        "a[[1]]",
        "a[1-2]]",
        "a[]",
        "a[x-y]",
        "a[3-1]",
        "a[1-3/0]",
        "a[01-100]",
        "a/2",
        "-a",
        "a b",
        "a@b",
        "a%s",
        "a!b",
        "a&b",
        "a^b",
        "a:b",
        "ü",
        "a\x1b[1-2]",
        "@all",
        "a[1-2",
    ],
)
def test_what_is_no_node_set_is_one_clear_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        expand(text)
    assert caught.value.exit_code == 2
    assert len(caught.value.message.splitlines()) == 1
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "x[1-100000000]",
        "x[01-100000000]",
        "x[00000001-99999999]",
        "a[1-1000]b[1-1000]",
        "a[1-1000]b[1-1000]c[1-1000]d[1-1000]e[1-1000]f[1-1000]g[1-1000]",
        "x[0-999999999999999999]",
        ",".join(f"y{n}[1-60000]" for n in range(2)),
        "x" * (5 * 1024 * 1024),
    ],
)
def test_too_large_is_said_before_anything_is_expanded(text: str) -> None:
    begin = time.process_time()  # what others take of the machine does not count
    with pytest.raises(RangeTooLarge) as caught:
        expand(text)
    assert time.process_time() - begin < 10
    assert caught.value.code == "range_too_large"
    assert len(caught.value.message) < 200


def test_the_limit_itself_is_allowed() -> None:
    assert len(expand(f"x[1-{MAX_HOSTS}]")) == MAX_HOSTS
    assert expand("x[1-5]", limit=5)
    with pytest.raises(RangeTooLarge):
        expand("x[1-5],y", limit=5)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["a"], "a"),
        (["gh200-02", "gh200-01", "gh200-03", "gh200-01"], "gh200-[01-03]"),
        (["h10", "h9", "h1"], "h[1,9-10]"),
        (["h1", "h01"], "h[1,01]"),
        (["b2", "b1", "a10", "a2"], "a[2,10],b[1-2]"),
        (["10.0.0.10", "10.0.0.2"], "10.0.0.2,10.0.0.10"),
        (["root@h1:22", "root@h2:22", "h3", "h4"], "h[3-4],root@h1:22,root@h2:22"),
        (["[::1]:22", "x"], "[::1]:22,x"),
        (["file:a.log", "file:b.log"], "file:a.log,file:b.log"),
    ],
)
def test_fold(names: list[str], text: str) -> None:
    assert fold(names) == text


NAMES = st.builds(
    lambda word, number, width, tail: f"{word}{str(number).zfill(width)}{tail}",
    st.sampled_from(["a", "gh200-", "rack1-n", "x"]),
    st.integers(0, 120),
    st.integers(1, 3),
    st.sampled_from(["", "", ".example.com", "-ib"]),
)


@settings(deadline=None)
@given(st.lists(NAMES, min_size=1, max_size=60), st.randoms())
def test_fold_reads_back_and_is_stable(names: list[str], chance: random.Random) -> None:
    text = fold(names)
    assert sorted(expand(text)) == sorted(set(names))
    chance.shuffle(names)
    assert fold(names) == text


@given(st.text(max_size=40))
def test_expand_answers_or_complains(text: str) -> None:
    try:
        names = expand(text)
    except UsageError:
        return
    assert names
    assert all(name and not name.startswith("-") for name in names)


def test_split_leaves_brackets_whole() -> None:
    assert split("a[1,2],b , c") == ["a[1,2]", "b", "c"]


def test_natural_order() -> None:
    names = ["h10", "h9", "a", "h1x", "h01"]
    assert sorted(names, key=natural_key) == ["a", "h01", "h1x", "h9", "h10"]
