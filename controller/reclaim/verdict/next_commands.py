"""What a person should run next, by what was found. Pure."""

from __future__ import annotations

from fleetmem.controller.answer.step import Step, next_step


def cache_commands(host: str) -> tuple[str, ...]:
    return (str(next_step("snapshot", host)), dry_run_of(host, cache=True))


def look_again(host: str, gpu: int) -> str:
    return dry_run_of(host, gpu=gpu)


def dry_run_of(host: str, **scope: object) -> str:
    return str(next_step("reclaim", host, **scope, dry_run=True))


def reaching(host: str, option: str) -> str:
    """A dry run with the scope option that would include a spared process."""
    return str(Step(("reclaim",), host, (tuple(option.split(" ", 1)), ("--dry-run",))))
