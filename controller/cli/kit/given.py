"""Commands to copy work from here: they carry the options that say how hosts are reached."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from fleetmem.controller.answer.envelope import Envelope
from fleetmem.controller.cli.kit.flags import Common
from fleetmem.controller.render.kit.line import Line

_NAMES_HOSTS = re.compile(
    r"\bfleetmem (hosts|reclaim|snapshot|audit|logs|run|why) (?!-i |--ask-sudo-password )"
)


def whole(text: str, common: Common) -> str:
    """*text* with this run's ``-i`` and ``--ask-sudo-password`` in the commands to copy."""
    given = f"-i {shlex.quote(common.inventory)} " if common.inventory else ""
    if common.ask_sudo_password:
        given += "--ask-sudo-password "
    return _NAMES_HOSTS.sub(lambda found: found[0] + given, text) if given else text


def whole_lines(lines: Sequence[Line], common: Common) -> list[Line]:
    """The same for the pieces of a screen that are commands to copy."""
    return [
        tuple((whole(text, common) if style == "next" else text, style) for text, style in line)
        for line in lines
    ]


def name_given(envelope: Envelope, common: Common) -> None:
    """The same for hints and next steps."""
    for entry in envelope["hosts"]:
        error = entry["error"]
        if error is not None and error["hint"]:
            error["hint"] = whole(error["hint"], common)
        if "reclaim" in entry:
            section = entry["reclaim"]
            section["next"] = [whole(step, common) for step in section["next"]]
        if "follow" in entry:
            entry["follow"]["next"] = [whole(step, common) for step in entry["follow"]["next"]]
    for finding in envelope["findings"]:
        finding["next"] = [whole(step, common) for step in finding["next"]]
