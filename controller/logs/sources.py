"""Whose log is meant, as the command line and :class:`fleetmem.Fleet` say it (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Sources:
    """Logs on a host. Where no unit, file or container is named, the GPUs' holders name them.

    ``invocation`` is 0 (newest), 1, …, ``all``, an id, or None for the command's own choice;
    ``since``, ``until`` and ``boot`` are journalctl's; ``user`` owns the units; ``directory`` holds
    journal files to read instead of the host's own.
    """

    units: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    containers: tuple[str, ...] = ()
    user: str | None = None
    invocation: str | None = None
    boot: str | None = None
    since: str | None = None
    until: str | None = None
    directory: str | None = None

    @property
    def named(self) -> bool:
        """Whether anything is named."""
        return bool(self.units or self.files or self.containers)

    def calls(self) -> list[dict[str, Any]]:
        """Arguments of ``journal.read`` that say which log, one for each named source."""
        found: list[dict[str, Any]] = []
        for unit in self.units:
            found.append({"unit": unit, **self._scope()})
        for file in self.files:
            found.append({"file": file, **self._span()})
        for container in self.containers:
            found.append({"container": container, **self._span()})
        if not found and self.directory is not None:
            found.append(_given(directory=self.directory, boot=self.boot, **self._span()))
        return found

    def of(self, source: dict[str, Any]) -> dict[str, Any]:
        """The same for one source that ``engine.find`` named."""
        kind, name = source["kind"], source["name"]
        if kind in ("unit", "user_unit"):
            scope = self._scope()
            if kind == "user_unit":
                scope["user"] = source["user"]
            return {"unit": name, **scope}
        key = "file" if kind == "file" else "container"
        return {key: name, **self._span()}

    def of_kernel(self) -> dict[str, Any]:
        """The kernel's lines of a host, whatever runs there."""
        return {
            "kernel_only": True,
            **_given(directory=self.directory, boot=self.boot, **self._span()),
        }

    def _span(self) -> dict[str, Any]:
        return _given(since=self.since, until=self.until)

    def _scope(self) -> dict[str, Any]:
        return _given(
            user=self.user,
            invocation=self.invocation,
            boot=self.boot,
            directory=self.directory,
            **self._span(),
        )


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
