"""What a log line may mean: the steps of patterns, and the moments of a start."""

from __future__ import annotations

from typing import Literal

Step = Literal[
    "set", "add", "load_begin", "load_end", "pool", "pool_draft", "pool_end", "graph_begin",
    "graph_end", "start", "ready", "stopped", "failed", "exit", "restart", "error", "phase",
    "presence", "config", "window_total", "gpu_list", "breakdown", "count", "least",
    "ignore",
]  # fmt: skip
"""What a pattern's line does to the budget that is being read."""

Phase = Literal["before-load", "after-load", "kv-pool", "after-init", "failed", "stopped"]
"""The moment of a start that a line marks, for ``snapshot --follow-start``."""
