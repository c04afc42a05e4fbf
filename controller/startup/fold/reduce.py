"""Events to invocations: where one start ends and the next begins, and whose figure it is.

The journal's invocation id decides where there is one. Else a new invocation begins at start
markers, at a new pid of an engine process, at a second target load of the same rank, and at
the first engine line after an exit. A second pool line alone is a draft's pool. Engines that
share a log have starts of their own; a line that names none belongs to the one that spoke last.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fleetmem.controller.startup.fold.build import Build, Rank
from fleetmem.controller.startup.fold.finish import finish_all
from fleetmem.controller.startup.fold.last_exception import MAX_EXCEPTIONS
from fleetmem.controller.startup.fold.size_units import Units
from fleetmem.controller.startup.fold.steps import DRAFT_TYPES, STEPS
from fleetmem.controller.startup.starts import Event, Head, Invocation

_TAIL = frozenset(("exit", "error", "restart", "stopped", "failed", "phase", "ignore", "presence"))
_QUIET = frozenset(("ignore", "phase", "count", "config"))
_RANKED = frozenset(
    (
        "load_begin",
        "load_end",
        "pool",
        "pool_draft",
        "window_total",
        "pool_end",
        "graph_begin",
        "graph_end",
        "breakdown",
        "presence",
        "add",
    )
)
_MUTE = frozenset(("ready", "stopped"))  # say nothing where no start is known
# Engines whose lines stand in one log: Ollama runs llama.cpp. LMCache runs in any.
_FAMILY = {"ollama": "llamacpp", "lmcache": None}
_AFTER_ENGINE_LOAD = ("activation_peak_bytes", "total_bytes", "kv_cache_bytes")
_TOLD_ONCE = frozenset(
    ("load_begin", "load_end", "pool", "pool_draft", "pool_end", "graph_end", "add", "window_total")
)
MAX_INVOCATIONS = 5000


class Reducer:
    """Takes events in log order; ``finish`` gives the invocations, oldest first."""

    def __init__(self) -> None:
        self._builds: list[Build] = []
        self._by_id: dict[str, Build] = {}
        self._pid_home: dict[tuple[str, int], Build] = {}
        self._units = Units()
        self._latest: dict[str, Build] = {}
        self._spoke: Build | None = None
        self._before: dict[str, tuple[str, str, str | None]] = {}
        self._doubled: set[str] = set()
        self._names: dict[frozenset[str], str] = {}
        self.taken = 0
        self.starts = 0

    @property
    def unit(self) -> str | None:
        """The engine's systemd unit, as far as the log tells."""
        return self._units.name

    def see(self, invocation: str, time: str | None) -> None:
        """The journal names an invocation, whether or not a pattern knows the line."""
        build = self._by_id.get(invocation)
        if build is None:
            build = self._by_id[invocation] = self._new()
            build.invocation_id = invocation
        if time is not None:
            build.started = build.started or time
            build.last = time

    def take(self, event: Event) -> None:
        """Apply one event. ``taken`` counts those that may say something, ``starts`` starts."""
        if event.step not in ("ignore", "count"):
            self.taken += 1
        if self._again(event):
            return
        build = self._home(event)
        if build is None:
            return
        key = self._key(event)
        if key is None and event.step in _RANKED and event.step != "presence":
            key = "_"
        rank = build.rank(key) if key is not None and self._has_rank(event) else None
        if rank is not None:
            head = event.head
            if head.pid is not None:
                rank.values["pid"] = head.pid
            if head.repeated is not None:
                rank.values["repeated"] = max(head.repeated, rank.values.get("repeated", 0))
        self._spoke = build
        if event.engine is not None and event.step != "ignore" and not _web_server(event):
            build.votes[event.engine] = build.votes.get(event.engine, 0) + 1
        if event.step == "start":
            build.starts.add((event.pattern, event.head.process))
        STEPS[event.step](build, rank, event)
        if event.step not in _QUIET and event.step not in ("start", "restart", "presence"):
            build.dirty = True
        if event.step != "ignore":
            build.keep_line(event, key)

    def _again(self, event: Event) -> bool:
        """The line before, once more: two handlers of one logger, or two ways of one log.

        A load that is told twice word by word shows it; some other lines may rightly be told
        twice, such as equal pools of several drafts.
        """
        key = self._key(event)
        if key is None:
            return False
        line = (event.pattern, event.head.text, event.head.time)
        same = event.step in _TOLD_ONCE and self._before.get(key) == line
        if same and event.step in ("load_begin", "load_end"):
            self._doubled.add(key)
        again = same and key in self._doubled
        self._before[key] = ("", "", None) if again else line
        return again

    def take_again(self, event: Event, times: int) -> None:
        """The same event *times* more, of the start that speaks: only counts change."""
        if event.step == "count" and self._spoke is not None:
            more = {n: v * times for n, v in event.values.items() if n.startswith("engine.")}
            STEPS["count"](self._spoke, None, replace(event, values=more))

    def take_exception(self, head: Head, row: dict[str, Any]) -> None:
        """An exception of the start that speaks; one that no start precedes is nobody's."""
        build = self._by_id.get(head.invocation or "") or self._spoke
        if build is None and self._builds:
            build = self._builds[-1]
        if build is not None and len(build.exceptions) < MAX_EXCEPTIONS:
            build.exceptions.append(row)

    def finish(self, forced: str | None) -> tuple[str | None, tuple[Invocation, ...]]:
        """The engine of the newest invocation that shows one, and all invocations."""
        return finish_all(self._builds, forced)

    def _new(self) -> Build:
        build = Build()
        self.starts += 1
        if len(self._builds) >= MAX_INVOCATIONS:
            gone = self._builds.pop(0)
            self._latest = {name: one for name, one in self._latest.items() if one is not gone}
        self._builds.append(build)
        return build

    def _home(self, event: Event) -> Build | None:
        head = event.head
        if head.invocation is not None:
            self.see(head.invocation, head.time)
            return self._by_id[head.invocation]
        if self._by_id and self._builds:  # the journal decides: others belong to the newest
            return self._builds[-1]
        family = None if _web_server(event) else _FAMILY.get(event.engine or "", event.engine)
        build = self._of(family, event)
        if event.values.get("systemd"):
            if not self._units.concerns(event):
                return None
        elif event.engine is not None and event.step not in _QUIET:
            since = self._units.engine_speaks()
            if since is not None and build is None:
                build = self._new()
                build.started = since
        if build is None:
            mute = event.step == "restart" or (event.step in _MUTE and family is None)
            if event.step in _QUIET or mute:
                return None if event.step != "phase" else self._new()
            build = self._new()
        elif self._border(build, event):
            build = self._new()
        build = self._pid(build, event)
        if family is not None and event.step not in _QUIET:
            self._latest[family] = build
        return build

    def _of(self, family: str | None, event: Event) -> Build | None:
        """The newest start of an engine, else the one that spoke last, if that may be its."""
        last = self._spoke or (self._builds[-1] if self._builds else None)
        free = last is not None and last not in self._latest.values()
        if family is None or free:  # a start that systemd told is the next engine's to speak
            return last
        return self._latest.get(family, last if event.step in _QUIET else None)

    def _border(self, build: Build, event: Event) -> bool:
        if build.ended and event.step not in _TAIL:
            return True
        if event.step == "start":
            return self._starts(build, event)
        if event.step == "load_end" and event.engine in ("sglang", "vllm", "trtllm"):
            return self._second_load(build, event)
        if event.step == "load_begin":
            return _memory_is_back(build, event, self._key(event))
        return False

    def _starts(self, build: Build, event: Event) -> bool:
        known = (event.pattern, event.head.process) in build.starts
        sibling = any(name == event.pattern for name, _ in build.starts)
        if not build.dirty and not (known and event.values.get("systemd")):
            return False
        if sibling and not known:  # one of several engine cores
            return False
        return not (event.engine == "llamacpp" and build.votes.get("ollama"))

    def _second_load(self, build: Build, event: Event) -> bool:
        key = self._key(event)
        rank = build.ranks.get(key) if key is not None else None
        if rank is None or rank.loads == 0:
            return False
        if event.engine == "trtllm":  # ranks print without their number
            return any(name in rank.values for name in _AFTER_ENGINE_LOAD)
        if event.engine != "sglang":
            return _vllm_restart(build, rank, event)
        kind = str(event.values.get("model_type") or "")
        if any(word in kind for word in DRAFT_TYPES):
            return False
        weights, first = event.values.get("weights_bytes"), rank.values.get("weights_bytes")
        smaller = weights is not None and first is not None and weights < first / 2
        if kind and kind == rank.model_type:  # a small model of the same kind may draft
            return not (smaller and rank.begin_again is not None)
        return not smaller

    def _pid(self, build: Build, event: Event) -> Build:
        """An engine process with a new pid is a new start; a late line goes to its own."""
        head = event.head
        name, pid = head.process, head.pid
        if name is None or pid is None or not _single(name):
            return build
        home = self._pid_home.get((name, pid))
        if home is not None:
            return home
        if build.pids.get(name, pid) != pid and event.step not in _QUIET:
            build = self._new()
        build.pids[name] = pid
        self._pid_home[(name, pid)] = build
        return build

    def _key(self, event: Event) -> str | None:
        head = event.head
        device = event.values.get("device")
        if isinstance(device, str) and event.step == "breakdown":
            return device
        if head.rank is not None:  # "TP1 EP1" and "EP1 TP1" are one rank
            return self._names.setdefault(frozenset(head.rank.split()), head.rank)
        if head.process is not None and head.process.startswith("APIServer"):
            return None
        return "_"

    def _has_rank(self, event: Event) -> bool:
        if event.step == "presence":
            return event.head.rank is not None
        if event.step in _RANKED:
            return True
        if event.step in ("set", "error"):
            return any("." not in name for name in event.values if name != "systemd")
        return False


def _web_server(event: Event) -> bool:
    """Uvicorn's lines are any engine's, and other programs'."""
    return event.step in _MUTE and "engine.uvicorn" in event.values


def _single(name: str) -> bool:
    """Process names that exist once in an engine."""
    if name.startswith("EngineCore"):
        return True
    return name.startswith(("Worker_", "VllmWorker_"))


def _vllm_restart(build: Build, rank: Rank, event: Event) -> bool:
    """A second load before any pool figure, and a smaller one, is a draft's."""
    sized = ("kv_cache_bytes", "kv_available_bytes", "requested_bytes")
    if any(name in rank.values for name in sized) or "num_gpu_blocks" in build.engine:
        return True
    first, second = rank.values.get("weights_bytes", 0), event.values.get("weights_bytes", 0)
    return bool(second > 0.5 * first)


def _memory_is_back(build: Build, event: Event, key: str | None) -> bool:
    """Free memory is where it was before the first load: no draft, a new start."""
    rank: Rank | None = build.ranks.get(key or "_")
    name = "avail_before_load_bytes"
    if rank is None or name not in rank.values or rank.loads == 0:
        return False
    used = rank.values.get("weights_bytes", 0)
    return bool(event.values[name] >= rank.values[name] - used / 2)
