"""A real vLLM with a tiny random model: started as people start it, known by exact identity.

``folder`` holds what makes ``vllm`` importable beside the machine's own torch: every directory in
it goes on PYTHONPATH. The model is made on the spot (random weights, a tokenizer of its own), so
nothing is fetched.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from tests.gpu import look

PORT = 8000
START_SECONDS = 200.0
NAME = "tiny"

SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_RUST_FRONTEND": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    # multicast over NVLink is left alone on machines that others use
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}

MAKE_MODEL = """
import sys
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

words = Tokenizer(models.BPE(unk_token="<unk>"))
words.pre_tokenizer = pre_tokenizers.ByteLevel()
words.decoder = decoders.ByteLevel()
marks = ["<unk>", "<s>", "</s>"]
text = (" ".join("word%d" % (i * j % 499) for j in range(40)) for i in range(200))
words.train_from_iterator(text, trainers.BpeTrainer(vocab_size=2048, special_tokens=marks))
fast = PreTrainedTokenizerFast(
    tokenizer_object=words, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
)
fast.save_pretrained(sys.argv[1])
torch.manual_seed(1)
shape = LlamaConfig(
    vocab_size=2048, hidden_size=1024, intermediate_size=2816, num_hidden_layers=8,
    num_attention_heads=8, num_key_value_heads=8, max_position_embeddings=16384,
    bos_token_id=1, eos_token_id=2,
)
LlamaForCausalLM(shape).to(torch.bfloat16).save_pretrained(sys.argv[1])
"""


@dataclass
class Engine:
    """One engine that runs. ``members`` has every process of it: pid to start time."""

    pid: int
    log: Path
    members: dict[int, int] = field(default_factory=dict)

    def learn(self) -> None:
        """Note the server and all that descends from it; call it while the server lives."""
        for pid in [self.pid, *descendants(self.pid)]:
            start = look.start_time(pid)
            if start is not None:
                self.members.setdefault(pid, start)

    def alive(self) -> list[int]:
        """Members that still run."""
        return [
            pid
            for pid, start in self.members.items()
            if look.start_time(pid) == start and look.lives(pid)
        ]

    def named(self, *titles: str) -> list[int]:
        """Living members whose title begins with one of *titles*."""
        return [pid for pid in self.alive() if title(pid).startswith(titles)]

    def kill(self, pids: list[int]) -> None:
        """SIGKILL members, by exact identity."""
        for pid in pids:
            handle = os.pidfd_open(pid)
            try:
                if look.start_time(pid) == self.members[pid]:
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)

    def end(self) -> None:
        """End what is left of it."""
        self.kill(self.alive())
        end = time.monotonic() + 20
        while self.alive() and time.monotonic() < end:
            time.sleep(0.1)


def title(pid: int) -> str:
    """The command line of a process, words joined by spaces."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def descendants(pid: int) -> list[int]:
    """All processes below *pid*."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    queue = [pid]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += children
    return found


def environment(folder: Path) -> dict[str, str]:
    """The environment in which ``vllm`` can be imported from *folder*."""
    places = [str(place) for place in sorted(folder.iterdir()) if place.is_dir()]
    return {**os.environ, **SETTINGS, "PYTHONPATH": os.pathsep.join(places)}


def make_model(folder: Path, where: Path) -> None:
    """Write the tiny model to *where*; RuntimeError with the reason."""
    done = subprocess.run(
        [sys.executable, "-c", MAKE_MODEL, str(where)],
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode:
        raise RuntimeError(f"the model could not be made: {done.stderr[-400:]}")


def start(folder: Path, model: Path, out: Path, tag: str, *options: str) -> Engine:
    """``vllm serve`` under nohup and setsid from a shell that ends; RuntimeError if it fails."""
    log = out / f"vllm-{tag}.log"
    words = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model)]
    words += ["--port", str(PORT), "--served-model-name", NAME, "--max-model-len", "8192"]
    words += ["--enforce-eager", "--gpu-memory-utilization", "0.5", *options]
    quoted = " ".join(f"'{word}'" for word in words)
    shell = f"setsid nohup {quoted} >'{log}' 2>&1 </dev/null & echo $!"
    done = subprocess.run(
        ["sh", "-c", shell],
        env=environment(folder),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    engine = Engine(int(done.stdout), log)
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        engine.learn()
        if answers():
            engine.learn()
            return engine
        if not look.lives(engine.pid):
            break
        time.sleep(0.5)
    engine.end()
    raise RuntimeError(f"vLLM ({tag}) did not start: {log.read_text(errors='replace')[-600:]}")


def answers() -> bool:
    """Whether a completion comes back."""
    order = {"model": NAME, "prompt": "word1 word2", "max_tokens": 4}
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}/v1/completions",
        data=json.dumps(order).encode(),
        headers={"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return bool(json.load(answer)["choices"])
    except (OSError, ValueError, KeyError, urllib.error.URLError):
        return False
