"""What was found and done before: SQLite in ``$XDG_STATE_HOME/fleetmem`` (0700).

Several fleetmem processes may use it at once: every write is one short transaction that
takes the write lock at its start. Intents, plans and the audit trail are on the disk before
the call returns; the rest may lose its last moment in a power cut, never its consistency.

Failing writes of what only *describes* a run warn once and are given up: the run matters
more. Plans and the trail raise HistoryUnavailable, since no host is changed without them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from fleetmem.controller.answer.envelope import (
    HOST_OUTCOMES,
    VERDICTS,
    Envelope,
    HostEntry,
    PlanHead,
    Run,
    new_envelope,
    new_host,
    now,
)
from fleetmem.controller.errors import HistoryUnavailable, UsageError
from fleetmem.controller.record.cut_off import cut_off
from fleetmem.controller.record.database import Database, open_database
from fleetmem.controller.record.state_directory import state_directory


@dataclass(frozen=True, slots=True)
class RunRow:
    """One line of ``runs list``."""

    id: str
    command: str
    started: str
    finished: str | None
    exit_code: int | None
    targeted: int
    outcomes: dict[str, int]
    verdicts: dict[str, int]


def open_history(
    warn: Callable[[str], None] = lambda text: None, directory: Path | None = None
) -> History:
    """Open (and create or migrate) the history; HistoryUnavailable where that cannot be."""
    return History(open_database(warn, directory or state_directory()))


def open_or_warn(warn: Callable[[str], None], directory: Path | None = None) -> History | None:
    """The history for a run that only reads; one warning and ``None`` where there is none."""
    try:
        return open_history(warn, directory)
    except HistoryUnavailable as error:
        warn(f"this run is not recorded: {error.message}")
        return None


class History:
    """One open history. Threads may share it; close it when done."""

    def __init__(self, database: Database) -> None:
        self.path = database.path
        self._database = database

    def close(self) -> None:
        """Close the database; a second call does nothing."""
        self._database.close()

    # --- a run, as it happens ------------------------------------------------------------

    def begin(self, run: Run, targeted: Sequence[str]) -> None:
        """Record that *run* has started over *targeted* hosts."""
        with self._database.may() as database:
            database.execute(
                "INSERT INTO runs (id, command, started, targeted) VALUES (?, ?, ?, ?)",
                (run["id"], run["command"], run["started"], json.dumps(list(targeted))),
            )

    def record_host(self, run_id: str, entry: HostEntry) -> None:
        """Record how one host of a run ended; a later call for the same host replaces it."""
        rest = {key: value for key, value in entry.items() if key != "readings"}
        verdict = entry["reclaim"]["verdict"] if "reclaim" in entry else None
        readings = [
            (run_id, entry["host"], probe, reading["outcome"], json.dumps(reading))
            for probe, reading in entry["readings"].items()
        ]
        row = (run_id, entry["host"], entry["outcome"], verdict, json.dumps(rest))
        with self._database.may() as database:
            database.execute("INSERT OR REPLACE INTO hosts VALUES (?, ?, ?, ?, ?)", row)
            database.executemany("INSERT OR REPLACE INTO readings VALUES (?, ?, ?, ?, ?)", readings)

    def finish(self, envelope: Envelope) -> None:
        """Record the end of a run: its exit code, findings and error."""
        run, error = envelope["run"], envelope.get("error")
        with self._database.may() as database:
            database.execute(
                "UPDATE runs SET finished = ?, exit_code = ?, findings = ?, error = ? WHERE id = ?",
                (
                    run["finished"],
                    run["exit_code"],
                    json.dumps(envelope["findings"]),
                    json.dumps(error) if error else None,
                    run["id"],
                ),
            )

    def correct_status(self, run_id: str, exit_code: int) -> None:
        """The process of a finished run ended with another status after all."""
        with self._database.may() as database:
            database.execute(
                "UPDATE runs SET exit_code = ? WHERE id = ? AND finished IS NOT NULL",
                (exit_code, run_id),
            )

    # --- what must be on the disk before anything is changed ------------------------------

    def trail(self, operation: str, host: str, event: Mapping[str, Any]) -> None:
        """Append one event of *operation*; it is on the disk when this returns."""
        with self._database.must(durable=True) as database:
            database.execute(
                "INSERT INTO trail (at, operation, host, event) VALUES (?, ?, ?, ?)",
                (now(), operation, host, json.dumps(event)),
            )

    def save_plan(
        self, run_id: str, host: str, plan: PlanHead, document: Mapping[str, Any]
    ) -> None:
        """Keep the plan of one host; it is on the disk when this returns.

        A plan that is kept already stays with the run that made it.
        """
        with self._database.must(durable=True) as database:
            database.execute(
                "INSERT OR IGNORE INTO plans VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    plan["id"],
                    host,
                    run_id,
                    plan["hash"],
                    json.dumps(document),
                    plan["created"],
                    plan["expires"],
                ),
            )

    # --- baselines ------------------------------------------------------------------------

    def record_baseline(self, host: str, gpu_uuid: str, key: Any, used_bytes: int) -> None:
        """Remember used memory of an idle GPU under *key* (JSON); the smallest wins."""
        with self._database.may() as database:
            database.execute(
                "INSERT INTO baselines VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT (host, gpu_uuid, key) DO UPDATE "
                "SET bytes = excluded.bytes, recorded = excluded.recorded "
                "WHERE excluded.bytes < bytes",
                (host, gpu_uuid, _key(key), used_bytes, now()),
            )

    def baseline(self, host: str, gpu_uuid: str, key: Any) -> int | None:
        """Smallest recorded used memory of that GPU under *key*, in bytes."""
        rows = self._rows(
            "SELECT bytes FROM baselines WHERE host = ? AND gpu_uuid = ? AND key = ?",
            (host, gpu_uuid, _key(key)),
        )
        return int(rows[0][0]) if rows else None

    # --- reading --------------------------------------------------------------------------

    def runs(self, limit: int = 20) -> list[RunRow]:
        """The newest *limit* runs, newest first."""
        rows = self._rows(
            "SELECT id, command, started, finished, exit_code, targeted FROM runs "
            "ORDER BY started DESC, rowid DESC LIMIT ?",
            (limit,),
        )
        return [
            RunRow(
                run_id,
                command,
                started,
                finished,
                exit_code,
                len(json.loads(targeted)),
                *(
                    self._ends_so_far(run_id)
                    if finished is None
                    else (self._counts("outcome", run_id), self._counts("verdict", run_id))
                ),
            )
            for run_id, command, started, finished, exit_code, targeted in rows
        ]

    def _ends_so_far(self, run_id: str) -> tuple[dict[str, int], dict[str, int]]:
        """Outcomes and verdicts of a run without a recorded end, its trail included."""
        entries = self.load(run_id)["hosts"]
        verdicts = [entry["reclaim"]["verdict"] for entry in entries if "reclaim" in entry]
        return Counter(entry["outcome"] for entry in entries), Counter(verdicts)

    def find_run(self, prefix: str) -> str:
        """The one run whose id begins with *prefix*; UsageError for none or several."""
        found = self.runs_like(prefix)
        if len(found) == 1:
            return found[0]
        if not found:
            raise UsageError(f"no run {prefix!r} in the history", "list them: fleetmem runs list")
        some = ", ".join(found)
        raise UsageError(f"run id {prefix!r} is ambiguous: {some}", "give more of it")

    def runs_like(self, prefix: str) -> list[str]:
        """Runs whose id begins with *prefix*, at most five; none for an empty one."""
        rows = self._rows(
            "SELECT id FROM runs WHERE substr(id, 1, ?) = ? ORDER BY started DESC LIMIT 5",
            (len(prefix), prefix),
        )
        return [str(row[0]) for row in rows] if prefix else []

    def newest_of_phase(self, phase: str, among: int = 500) -> str | None:
        """The newest of the last *among* runs that is a snapshot of *phase*."""
        rows = self._rows(
            "SELECT run FROM hosts JOIN (SELECT id, started, command FROM runs "
            "ORDER BY started DESC LIMIT ?) ON id = run WHERE command = 'snapshot' "
            "AND json_extract(entry, '$.snapshot.phase') = ? ORDER BY started DESC LIMIT 1",
            (among, phase),
        )
        return str(rows[0][0]) if rows else None

    def load(self, prefix: str) -> Envelope:
        """The envelope of a recorded run.

        Where no end was recorded, hosts that never reported are ``unknown``, and so are those
        that the trail says were changed.
        """
        run_id = self.find_run(prefix)
        command, started, finished, exit_code, targeted, findings, error = self._rows(
            "SELECT command, started, finished, exit_code, targeted, findings, error "
            "FROM runs WHERE id = ?",
            (run_id,),
        )[0]
        names = json.loads(targeted)
        entries = self._entries(run_id)
        run: Run = {
            "id": run_id,
            "command": command,
            "started": started,
            "finished": finished,
            "exit_code": exit_code,
        }
        hosts = [entries.get(name) or new_host(name, "unknown") for name in names]
        if finished is None:
            changes = self._changes(run_id)
            hosts = [cut_off(entry, changes.get(entry["host"], ())) for entry in hosts]
        envelope = new_envelope(run, names, hosts)
        envelope["findings"] = json.loads(findings)
        if error:
            envelope["error"] = json.loads(error)
        return envelope

    def hosts_by(self, prefix: str, outcome: str) -> list[str]:
        """Hosts of a run with that outcome or verdict (``all`` or nothing for every one), for
        ``-H @run:ID:OUTCOME``. UsageError for a word that is neither."""
        outcome = outcome or "all"
        if outcome not in (*HOST_OUTCOMES, *VERDICTS, "all"):
            known = " ".join(HOST_OUTCOMES)
            raise UsageError(
                f"{outcome!r} is not an outcome", f"outcomes: {known} all; or a verdict"
            )
        return [
            entry["host"]
            for entry in self.load(prefix)["hosts"]
            if outcome in ("all", entry["outcome"])
            or ("reclaim" in entry and entry["reclaim"]["verdict"] == outcome)
        ]

    def trail_of(self, operation: str, host: str | None = None) -> list[dict[str, Any]]:
        """Events of an operation in order, each with ``at``, ``host`` and its own fields."""
        rows = self._rows(
            "SELECT at, host, event FROM trail WHERE operation = ? ORDER BY seq", (operation,)
        )
        return [
            {"at": at, "host": name, **json.loads(event)}
            for at, name, event in rows
            if host in (None, name)
        ]

    def plans(self, wanted: str) -> dict[str, tuple[str, dict[str, Any]]]:
        """(hash, document) by host of the plan or the run whose id begins with *wanted*.

        Empty where there is none; UsageError where *wanted* fits several.
        """
        rows = self._rows(
            "SELECT id, run, host, hash, document FROM plans "
            "WHERE substr(id, 1, length(?1)) = ?1 OR substr(run, 1, length(?1)) = ?1",
            (wanted,),
        )
        by_plan = {row[0] for row in rows if row[0].startswith(wanted)}
        by_run = {row[1] for row in rows if row[1].startswith(wanted)}
        if len(by_plan) + len(by_run) > 1:
            raise UsageError(f"{wanted!r} fits several plans: write more of the id")
        return {host: (digest, json.loads(document)) for _, _, host, digest, document in rows}

    # --- inside ---------------------------------------------------------------------------

    def _changes(self, run_id: str) -> dict[str, list[dict[str, Any]]]:
        """Events of the trail by host that belong to a run: they name it, or were recorded before
        they did and have the operation of one of its plans."""
        found: dict[str, list[dict[str, Any]]] = {}
        for host, event in self._rows(
            "SELECT host, event FROM trail WHERE json_extract(event, '$.run') = ?1 "
            "OR (json_extract(event, '$.run') IS NULL "
            "AND operation IN (SELECT id FROM plans WHERE run = ?1)) ORDER BY seq",
            (run_id,),
        ):
            found.setdefault(host, []).append(json.loads(event))
        return found

    def _entries(self, run_id: str) -> dict[str, HostEntry]:
        readings: dict[str, dict[str, Any]] = {}
        for host, probe, reading in self._rows(
            "SELECT host, probe, reading FROM readings WHERE run = ?", (run_id,)
        ):
            readings.setdefault(host, {})[probe] = json.loads(reading)
        rows = self._rows("SELECT host, entry FROM hosts WHERE run = ?", (run_id,))
        return {
            host: cast(HostEntry, {**json.loads(entry), "readings": readings.get(host, {})})
            for host, entry in rows
        }

    def _counts(self, column: str, run_id: str) -> dict[str, int]:
        query = (
            f"SELECT {column}, count(*) FROM hosts WHERE run = ? AND {column} IS NOT NULL "
            f"GROUP BY {column}"
        )
        return dict(self._rows(query, (run_id,)))

    def _rows(self, query: str, values: tuple[Any, ...]) -> list[Any]:
        return self._database.rows(query, values)


def _key(key: Any) -> str:
    return json.dumps(key, sort_keys=True)
