"""Prints docs/errors.md from controller/errors/; a test keeps the two equal."""

from __future__ import annotations

from fleetmem.controller.errors import rows


def page() -> str:
    """The page as text."""
    lines = [
        "# Errors",
        "",
        "Made from `controller/errors/` by `python docs/make_errors.py`. The code stands in",
        "`error.code` of the JSON; the number is the exit status if that error ends the run.",
        "",
        "| code | exit | meaning | what to do |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{code}` | {number} | {meaning} | {todo} |" for code, number, meaning, todo in rows()
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
