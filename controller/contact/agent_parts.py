"""The agent as it travels, as values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AgentPart:
    """One part: its name, digest (hex), uncompressed size and compressed bytes."""

    name: str
    sha256: str
    size_bytes: int
    compressed: bytes

    @property
    def label(self) -> str:
        """What the bootstrap is told about the part."""
        return f"{self.name}:{self.sha256}:{self.size_bytes}"


@dataclass(frozen=True)
class Payload:
    """The bootstrap for the command line with its wrapper; what follows on stdin where the
    host has not got it: stage 0 (zlib), then the parts."""

    wrap: str
    bootstrap: str
    stage0: bytes
    parts: tuple[AgentPart, ...]

    @property
    def labels(self) -> str:
        """All parts as one argument."""
        return ",".join(part.label for part in self.parts)
