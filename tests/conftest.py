"""For all tiers: the profile of properties, what runs beside what, what could not be tested."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter
    from xdist.scheduler import LoadScopeScheduling

# A busy machine makes no example of a property too slow.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

# Under nohup it is ignored, by every child too, and nothing that a test starts would end by it.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Files run beside each other as tests/beside.py says."""
    from tests.beside import scheduling

    return scheduling(config, log)


@pytest.fixture(autouse=True)
def _no_terminal_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Screens are as wide as the test says: xdist's workers and terminals set COLUMNS."""
    monkeypatch.delenv("COLUMNS", raising=False)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A worker's tests in the order in which units are handed out."""
    if hasattr(config, "workerinput"):
        from tests.beside import order, unit_of

        items.sort(key=lambda item: order(unit_of(item.nodeid)))


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """What this machine could not test, under the results and not among them."""
    reports = [report for rows in terminalreporter.stats.values() for report in rows]
    said = {
        str(value)
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == "not_tested" and value is not None
    }
    if said:
        terminalreporter.section("NOT TESTED on this machine", yellow=True)
        for line in sorted(said):
            terminalreporter.line(line)
