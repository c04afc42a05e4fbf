"""The interpreters that hosts may have, and which of them this machine can offer to the tests.

pyenv's, those on the path, and what Debian's other releases have: `python -m tests.pythons`
(part of `make test-setup`) unpacks those that are missing into the lab's cache.
"""

from __future__ import annotations

import glob
import os
import shutil
import sys

from tests.lab.making import image, python_of_release
from tests.lab.making.build import LabError

WANTED = ("3.6", "3.7", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13")
OLDEST = (3, 8)
"""The oldest that the agent runs on."""


def key(version: str) -> tuple[int, ...]:
    """Numbers to compare."""
    return tuple(int(part) for part in version.split("."))


def find(version: str) -> str | None:
    """A real interpreter of *version*."""
    homes = (os.environ.get("PYENV_ROOT", ""), os.path.expanduser("~/.pyenv"))
    places = [
        place
        for home in homes
        for place in sorted(glob.glob(f"{home}/versions/{version}.*/bin/python{version}"))
    ]
    places += filter(None, [shutil.which(f"python{version}", path="/usr/local/bin:/usr/bin")])
    unpacked = python_of_release.home(image.cache(), version) / f"bin/python{version}"
    places += [str(unpacked)] if unpacked.exists() else []
    return next(iter(places), None)


def found(wanted: tuple[str, ...] = WANTED) -> dict[str, str]:
    """Interpreters by version, of those that are here."""
    places = {version: find(version) for version in wanted}
    return {version: place for version, place in places.items() if place is not None}


def not_tested(what: str, wanted: tuple[str, ...] = WANTED) -> str | None:
    """One sentence about those that *what* lacks here; ``None`` where all are here."""
    missing = [version for version in wanted if find(version) is None]
    if not missing:
        return None
    return f"{what} Python {', '.join(missing)}: neither on this machine nor in its packages"


def main() -> int:
    """Fetches what other releases have and this machine lacks; never an error."""
    for version, release in python_of_release.RELEASES.items():
        if find(version) is not None:
            continue
        try:
            python_of_release.unpack(image.cache(), version, release)
            print(f"lab setup: unpacked Python {version} of Debian {release}")
        except LabError as error:
            print(f"lab setup: Python {version} stays untested: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
