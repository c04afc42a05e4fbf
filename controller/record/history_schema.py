"""The tables of the run history, and the steps that lead from one version to the next."""

from __future__ import annotations

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE runs (
            id TEXT PRIMARY KEY,
            command TEXT NOT NULL,
            started TEXT NOT NULL,
            finished TEXT,
            exit_code INTEGER,
            targeted TEXT NOT NULL,
            findings TEXT NOT NULL DEFAULT '[]',
            error TEXT
        ) STRICT""",
        "CREATE INDEX runs_started ON runs (started)",
        """CREATE TABLE hosts (
            run TEXT NOT NULL REFERENCES runs (id),
            host TEXT NOT NULL,
            outcome TEXT NOT NULL,
            verdict TEXT,
            entry TEXT NOT NULL,
            PRIMARY KEY (run, host)
        ) STRICT""",
        """CREATE TABLE readings (
            run TEXT NOT NULL,
            host TEXT NOT NULL,
            probe TEXT NOT NULL,
            outcome TEXT NOT NULL,
            reading TEXT NOT NULL,
            PRIMARY KEY (run, host, probe)
        ) STRICT""",
        """CREATE TABLE plans (
            id TEXT NOT NULL,
            host TEXT NOT NULL,
            run TEXT NOT NULL,
            hash TEXT NOT NULL,
            document TEXT NOT NULL,
            created TEXT NOT NULL,
            expires TEXT NOT NULL,
            PRIMARY KEY (id, host)
        ) STRICT""",
        """CREATE TABLE trail (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            at TEXT NOT NULL,
            operation TEXT NOT NULL,
            host TEXT NOT NULL,
            event TEXT NOT NULL
        ) STRICT""",
        "CREATE INDEX trail_operation ON trail (operation, host)",
        """CREATE TRIGGER trail_kept BEFORE DELETE ON trail
            BEGIN SELECT RAISE (ABORT, 'the trail is append-only'); END""",
        """CREATE TRIGGER trail_fixed BEFORE UPDATE ON trail
            BEGIN SELECT RAISE (ABORT, 'the trail is append-only'); END""",
        """CREATE TABLE baselines (
            host TEXT NOT NULL,
            gpu_uuid TEXT NOT NULL,
            key TEXT NOT NULL,
            bytes INTEGER NOT NULL,
            recorded TEXT NOT NULL,
            PRIMARY KEY (host, gpu_uuid, key)
        ) STRICT""",
    ),
)
"""Step n leads from ``user_version`` n to n + 1. Published steps are never edited."""
