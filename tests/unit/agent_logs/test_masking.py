"""Secrets in command lines never leave the host; everything else stays as it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetmem.agent.kernel import masking, tasks

KEY = "sk-proj-0123456789abcdef"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (["vllm", "serve", "m", "--api-key", "abc"], ["vllm", "serve", "m", "--api-key", "***"]),
        (
            ["vllm", "--api-key", "a", "b", "--port", "1"],
            ["vllm", "--api-key", "***", "***", "--port", "1"],
        ),
        (["x", "--api-key=abc", "y"], ["x", "--api-key=***", "y"]),
        (["x", "--api_key=abc"], ["x", "--api_key=***"]),
        (["x", "--hf-token", "t", "m"], ["x", "--hf-token", "***", "m"]),
        (["x", "--token", "-q"], ["x", "--token", "-q"]),
        (["x", "--admin-api-key", "a b"], ["x", "--admin-api-key", "***"]),
        (["x", "--ssl-keyfile-password=p"], ["x", "--ssl-keyfile-password=***"]),
        (["env", "HF_TOKEN=t", "python"], ["env", "HF_TOKEN=***", "python"]),
        (["AWS_SECRET_ACCESS_KEY=t"], ["AWS_SECRET_ACCESS_KEY=***"]),
        (["x", "--s3.secret_key", "t"], ["x", "--s3.secret_key", "***"]),
        (["x", "https://me:pw@host/p"], ["x", "https://me:***@host/p"]),
        (["git", "https://tok@host/p"], ["git", "https://***@host/p"]),
        (["curl", "-H", "Authorization: Bearer abc"], ["curl", "-H", "Authorization: Bearer ***"]),
        (["curl", "-H", "X: Bearer abc"], ["curl", "-H", "X: Bearer ***"]),
        (["x", KEY], ["x", "***"]),
        (["x", '{"k":"' + KEY + '"}'], ["x", '{"k":"***"}']),
        (["x", "hf_abcdefghijklmnopqrst"], ["x", "***"]),
        (
            ["bash", "-c", "vllm --api-key abc --port 1"],
            ["bash", "-c", "vllm --api-key *** --port 1"],
        ),
        (["bash", "-c", "TOKEN='a b' run"], ["bash", "-c", "TOKEN=*** *** run"]),
        (["bash", "-c", "x --password 'a b' --q"], ["bash", "-c", "x --password *** *** --q"]),
        (["x", '{"api_key": "abc"}'], ["x", '{"api_key": ***']),
    ],
)
def test_secrets_are_masked(line: list[str], shown: list[str]) -> None:
    data = "\0".join(line).encode() + b"\0"
    assert masking.masked(data).decode().rstrip("\0").split("\0") == shown


@pytest.mark.parametrize(
    "line",
    [
        "vllm serve m --max-num-batched-tokens 8192 --tokenizer /m --max-tokens 5",
        "python train.py --pad-token x --stop_token y --key-frames 3 --monkey 4",
        "sglang::scheduler_TP0",
        "VLLM::Worker_TP0",
        "x --public-key-file /k --keyring a sk-learn --author me",
        "python http://127.0.0.1:8000/v1 user@host",
    ],
)
def test_everything_else_stays(line: str) -> None:
    for data in (line.encode(), line.replace(" ", "\0").encode()):
        assert masking.masked(data) == data


@given(st.binary(max_size=200))
def test_any_bytes_are_read(data: bytes) -> None:
    found = masking.masked(data)
    assert found.count(b"\0") == data.count(b"\0")


@given(st.text("abcXYZ019", min_size=24, max_size=40), st.sampled_from(["--api-key", "--hf-token"]))
def test_a_value_never_survives(value: str, flag: str) -> None:
    for line in (f"x\0{flag}\0{value}\0y", f"x\0{flag}={value}", f"sh\0-c\0x {flag} {value} y"):
        assert value.encode() not in masking.masked(line.encode())


def test_a_title_is_masked_before_it_is_cut(tmp_path: Path) -> None:
    line = b"python3\0" + b"-x\0" * 70 + b"--api-key\0" + b"k" * 400
    (tmp_path / "cmdline").write_bytes(line)
    title = tasks.title(f"{tmp_path}{os.sep}")
    assert title.endswith("--api-key ***")
