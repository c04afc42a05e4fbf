"""Processes that hold simulated GPU memory, in the ways that go wrong in real life."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import dataclass

from tests.lab.making.build import LabError

KINDS = (
    "plain",
    "mapped",
    "second-node",
    "pinned",
    "term-ignorer",
    "orphan",
    "leader-zombie",
    "retitled",
    "forked-holder",
    "ambiguous-heirs",
    "unreaped",
    "bystander",
    "unit",
)


@dataclass(frozen=True)
class Hog:
    """Pids as the host sees them: who holds, who is dead and named, who only helps."""

    holders: list[int]
    dead: list[int]
    helpers: list[int]

    def line(self) -> str:
        """One JSON line."""
        return json.dumps({"holders": self.holders, "dead": self.dead, "helpers": self.helpers})


def hog_command(kind: str, gpu: int, mib: int, title: str | None) -> str:
    """The shell command that starts a hog inside a host."""
    if kind not in KINDS:
        raise LabError(f"no kind {kind}; there are: {' '.join(KINDS)}")
    if gpu < 0 or mib < 0:
        raise LabError("neither a GPU's index nor its MiB can be negative")
    words = ["/run/lab/hog", kind, str(gpu), str(mib)]
    if title is not None:
        words.append(title)
    return unit_command(words) if kind == "unit" else shlex.join(words)


def unit_command(words: list[str]) -> str:
    """Starts a hog as a service of the host's systemd and waits until it is charged."""
    return (
        "unit=lab-hog-$$; "
        f"systemd-run --quiet --unit=$unit -- {shlex.join(words)} || exit 1; "
        'pid=$(systemctl show --property=MainPID --value "$unit"); '
        "for try in $(seq 200); do "
        'if grep -qs " pid=$pid " /run/nvml-sim/charges/*; then '
        'echo "{\\"holders\\": [$pid], \\"dead\\": [], \\"helpers\\": []}"; exit 0; fi; '
        'sleep 0.05; done; echo "hog: $unit took no GPU" >&2; exit 1'
    )


def parse_hog(done: subprocess.CompletedProcess[str]) -> Hog:
    """What the hog printed. Raises LabError with its complaint."""
    try:
        if done.returncode == 0:
            found = json.loads(done.stdout)
            return Hog(found["holders"], found["dead"], found["helpers"])
    except (ValueError, KeyError):
        pass
    said = (done.stderr or done.stdout).strip().splitlines()
    raise LabError(f"the hog did not start: {said[-1] if said else done.returncode}")
