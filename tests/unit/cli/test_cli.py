"""The command line: parsing, answers, exit codes. The fleet behind it is a fake one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleetmem.controller.answer import envelope as env
from fleetmem.controller.answer.envelope import Envelope, HostEntry
from fleetmem.controller.answer.exit_codes import exit_code
from fleetmem.controller.cli import main
from fleetmem.controller.cli.kit.ask import agreed, question
from fleetmem.controller.errors import NoHostsMatch
from fleetmem.controller.reclaim.options import ReclaimOptions
from fleetmem.controller.record.history import open_history
from fleetmem.controller.render.hosts import resolved_lines
from fleetmem.controller.render.kit.line import plain
from fleetmem.controller.text.cap import Cap
from tests.unit.reclaim.reclaim_samples import eight_gpus, envelope, idle, unreachable


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("fleetmem snap", "plain,snapshot"),
        ("fleetmem snapshot --ph", "plain,--phase"),
        ("fleetmem playbooks ch", "plain,check"),
        ("fleetmem reclaim --up-to he", "plain,heirs"),
    ],
)
def test_a_shell_completes_commands_options_and_values(words: str, offered: str) -> None:
    """As the README's line sets it up for bash."""
    done = subprocess.run(
        [str(Path(sys.executable).parent / "fleetmem")],
        env={
            **os.environ,
            "_FLEETMEM_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.splitlines() == [offered], done.stderr


WORD = "got an unexpected argument: "


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        ("snapshot a1", WORD + "a1", "snapshot -H a1"),
        ("reclaim a1", WORD + "a1", "reclaim -H a1"),
        ("logs a1", WORD + "a1", "logs -H a1"),
        ("run memory a1", WORD + "a1", "run -H a1"),
        ("hosts --check -H a1 a2", WORD + "a2", "hosts -H a1,a2"),
        ("snapshot -H a1 a2", WORD + "a2", "snapshot -H a1,a2"),
        ("reclaim a[1-2] b", "got unexpected arguments: a[1-2] b", "reclaim -H 'a[1-2],b'"),
        ("snapshot", "Missing option '-H' / '--hosts'.", "snapshot -H 'gh200-*'"),
    ],
)
def test_hosts_given_as_plain_words(
    capsys: pytest.CaptureFixture[str], words: str, said: str, hint: str
) -> None:
    """The same answer on every command, with the command as it should have been."""
    code, out, err = run(capsys, *words.split())
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        f"fleetmem: {said}",
        f"hint: hosts are named with -H: fleetmem {hint}",
    ]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("runs list a1", "see fleetmem runs list --help"),
        ("snapshot -H a1 --fanout x", "see fleetmem snapshot --help"),
        ("snapshot a1 --nope", "see fleetmem snapshot --help"),
        ("run", "see fleetmem run --help"),
    ],
)
def test_other_mistakes_have_their_own_hints(
    capsys: pytest.CaptureFixture[str], words: str, hint: str
) -> None:
    assert run(capsys, *words.split())[2].splitlines()[-1] == f"hint: {hint}"


class FakeFleet:
    """Answers with prepared entries; asks for approval where there are targets."""

    loaded: dict[str, Any]
    entries: list[HostEntry] = []  # noqa: RUF012 - each test sets its own
    options: ReclaimOptions
    approved: bool | None = None
    fail: Exception | None = None

    @classmethod
    def load(cls, **given: Any) -> FakeFleet:
        """Remember what the command line asked for."""
        cls.loaded = given
        if cls.fail:
            raise cls.fail
        return cls()

    @property
    def hosts(self) -> tuple[Any, ...]:
        """One object a host, as the inventory gives them."""
        return tuple(
            types.SimpleNamespace(
                name=entry["host"],
                address="10.0.0.1",
                port=22,
                user=None,
                transport="ssh",
                groups=("lab", "h200"),
                jump=(),
            )
            for entry in self.entries
        )

    async def check(self, on_event: Callable[[Any], None]) -> Envelope:
        """Nothing but the rows."""
        for entry in self.entries:
            on_event({"kind": "host_done", "host": entry["host"], "outcome": entry["outcome"]})
        return self._answer()

    async def reclaim(
        self, options: ReclaimOptions, approve: Any, on_event: Any, stored: Any = None
    ) -> Envelope:
        """Plan, ask, apply in no time."""
        FakeFleet.options = options
        targets = any("reclaim" in entry and entry["reclaim"]["targets"] for entry in self.entries)
        if options.dry_run:
            self._planned()
        elif targets:
            FakeFleet.approved = await approve(self.entries)
            if self.approved:
                for entry in self.entries:
                    for row in entry["reclaim"]["rungs"] if "reclaim" in entry else ():
                        on_event({"kind": "rung", "host": entry["host"], "rung": row})
            else:
                self._planned()
        declined = targets and not options.dry_run and not self.approved
        return self._answer(declined or (options.dry_run and options.detailed_exitcode))

    def _answer(self, plan_only: bool = False) -> Envelope:
        """The rows with the status that a run gives them."""
        answer = envelope(*self.entries)
        fail_on = self.loaded["settings"].fail_on
        answer["run"]["exit_code"] = exit_code(answer, plan_only=plan_only, fail_on=fail_on)
        return answer

    def _planned(self) -> None:
        for entry in self.entries:
            if "reclaim" in entry and entry["reclaim"]["targets"]:
                entry["reclaim"]["verdict"] = "planned"
                entry["reclaim"]["rungs"] = []


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[FakeFleet]:
    """Put the fake fleet in place of the real one, and the state where it harms nobody."""
    module = types.ModuleType("fleetmem.controller.fleet")
    module.Fleet = FakeFleet  # type: ignore[attr-defined]
    module.FleetSettings = types.SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fleetmem.controller.fleet", module)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("NO_COLOR", "FORCE_COLOR", "FLEETMEM_OUTPUT", "FLEETMEM_FANOUT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(FakeFleet, "entries", [eight_gpus()])
    monkeypatch.setattr(FakeFleet, "approved", None)
    monkeypatch.setattr(FakeFleet, "fail", None)
    return FakeFleet


Capture = pytest.CaptureFixture[str]


def run(capsys: Capture, *words: str) -> tuple[int, str, str]:
    """Run the command line; status, stdout, stderr."""
    status = main(list(words))
    out, err = capsys.readouterr()
    return status, out, err


def test_reclaim_from_plan_to_proof(capsys: Capture) -> None:
    """Plan, rows and verdict, each once and in this order, on stdout."""
    status, out, err = run(capsys, "reclaim", "-H", "gpu-srv-1", "--yes", "-q")
    assert status == 0
    assert err == ""
    marks = [out.index(text) for text in ("PLAN 7f3c", "steps ", "STEP ", "KILL  ", "✓ reclaimed")]
    assert marks == sorted(marks)
    assert [out.count(text) for text in ("PLAN", "STEP", "✓ reclaimed")] == [1, 1, 1]


def test_options_reach_the_fleet(capsys: Capture, fake: type[FakeFleet]) -> None:
    """Every option arrives, in the units its name says."""
    run(
        capsys,
        "reclaim",
        "-H",
        "a-[1-2]",
        "-x",
        "a-1",
        "-i",
        "inv.yaml",
        "--fanout",
        "7",
        "--timeout",
        "2m",
        "--gpu",
        "0-3",
        "--pid",
        "5,6",
        "--pid",
        "7",
        "--user",
        "bob",
        "--yes",
        "--up-to",
        "kill",
        "--no-drain",
        "--grace-period",
        "500ms",
        "--release-timeout",
        "1h",
        "--max-fail",
        "10%",
        "--canary",
        "2",
        "--reason",
        "r",
        "--override-protected",
        "9",
        "--accept-new-host-key",
    )
    assert fake.loaded["hosts"] == "a-[1-2]"
    assert fake.loaded["exclude"] == "a-1"
    assert fake.loaded["inventory"] == "inv.yaml"
    settings = fake.loaded["settings"]
    assert (settings.fanout, settings.host_timeout_seconds, settings.accept_new_host_key) == (
        7,
        120.0,
        True,
    )
    assert fake.options == ReclaimOptions(
        gpu="0-3",
        pids=(5, 6, 7),
        user="bob",
        yes=True,
        up_to="kill",
        no_drain=True,
        grace_period_seconds=0.5,
        release_timeout_seconds=3600.0,
        max_fail=Cap(percent=10.0),
        canary=2,
        reason="r",
        override_protected=(9,),
    )
    assert fake.options.rungs == ("owner", "term", "kill")


REPEATED = [
    ("-H", ("a", "b,c"), lambda fake: fake.loaded["hosts"] == "a,b,c"),
    ("-x", ("a", "b"), lambda fake: fake.loaded["exclude"] == "a,b"),
    ("--gpu", ("0", "2-3"), lambda fake: fake.options.gpu == "0,2-3"),
    ("--user", ("bob", "1000"), lambda fake: fake.options.users == {"bob", "1000"}),
    ("--pid", ("5", "h:6,7"), lambda fake: fake.options.pids == (5, 7)),
    ("--pid", ("5", "h:6"), lambda fake: fake.options.host_pids == (("h", 6),)),
    ("--unit", ("a", "b.service"), lambda fake: fake.options.units == ("a", "b.service")),
    ("--container", ("a", "b"), lambda fake: fake.options.containers == ("a", "b")),
    ("--override-protected", ("5", "6"), lambda fake: fake.options.override_protected == (5, 6)),
    (
        "--override-protected",
        ("h:5", "[::1]:22:6"),
        lambda fake: fake.options.override_protected_on == (("h", 5), ("[::1]:22", 6)),
    ),
]


@pytest.mark.parametrize(("option", "values", "arrived"), REPEATED)
def test_repeated_options_add_up(
    capsys: Capture, fake: type[FakeFleet], option: str, values: tuple[str, ...], arrived: Any
) -> None:
    words = [word for value in values for word in (option, value)]
    given = words if option == "-H" else ["-H", "a", *words]
    assert run(capsys, "reclaim", *given, "--dry-run", "-q")[0] == 0
    assert arrived(fake)


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("--inventory", ("-i", "a.yaml", "--inventory=b.yaml")),
        ("--timeout", ("--timeout", "1s", "--timeout", "9m")),
        ("--up-to", ("--up-to", "term", "--up-to", "kill")),
        ("--grace-period", ("--grace-period", "1s", "--grace-period", "2s")),
        ("--max-fail", ("--max-fail", "1", "--max-fail", "9")),
        ("--canary", ("--canary", "1", "--canary", "0")),
        ("--reason", ("--reason", "a", "--reason", "b")),
        ("--apply", ("--apply", "a", "--apply", "b")),
        ("--output", ("-o", "json", "-otable")),
    ],
)
def test_an_option_that_takes_one_value_refuses_two(
    capsys: Capture, fake: type[FakeFleet], option: str, values: tuple[str, ...]
) -> None:
    """The last one does not win in silence."""
    status, _, err = run(capsys, "reclaim", "-H", "a", "--dry-run", *values)
    assert status == 2
    assert f"fleetmem: {option} was given more than once, but takes one value" in err


@pytest.mark.parametrize(
    "option", ["-H", "-x", "--gpu", "--user", "--unit", "--container", "--pid"]
)
def test_an_empty_value_is_refused(capsys: Capture, fake: type[FakeFleet], option: str) -> None:
    """It is most likely a variable that is not set: it must not spare or reach everybody."""
    hosts = () if option == "-H" else ("-H", "a")
    status, _, err = run(capsys, "reclaim", *hosts, option, "", "--dry-run")
    assert status == 2
    assert "the value is empty" in err or "'' is not a PID" in err


@pytest.mark.parametrize("pid", ["x", "0", ":5", "h:", "h:x", "5,", "h 5"])
def test_what_is_not_a_pid_is_refused(capsys: Capture, fake: type[FakeFleet], pid: str) -> None:
    status, _, err = run(capsys, "reclaim", "-H", "a", "--pid", pid, "--dry-run")
    assert (status, "is not a PID; use 4711 or HOST:4711" in err) == (2, True)


def test_without_a_terminal_nothing_is_applied(capsys: Capture, fake: type[FakeFleet]) -> None:
    """The plan, its hash, exit 6."""
    status, out, err = run(capsys, "reclaim", "-H", "a")
    assert (status, fake.approved) == (6, False)
    assert "PLAN 7f3c" in out
    assert "hash ab12cd34" in err
    assert "--yes" in err
    assert "reclaimed" not in out


def test_dry_run_codes(capsys: Capture, fake: type[FakeFleet]) -> None:
    """A dry run is a success, or 6 where the code shall say that there is something to do."""
    assert run(capsys, "reclaim", "-H", "a", "--dry-run")[0] == 0
    assert run(capsys, "reclaim", "-H", "a", "--dry-run", "--detailed-exitcode")[0] == 6
    fake.entries = [idle("a")]
    status, out, _ = run(capsys, "reclaim", "-H", "a", "--dry-run", "--detailed-exitcode")
    assert status == 0
    assert "· nothing_to_do" in out
    assert fake.approved is None


def test_json_is_the_only_thing_on_stdout(capsys: Capture) -> None:
    """Rows and plan stay off stdout; the exit code in the envelope is the process's."""
    status, out, err = run(capsys, "reclaim", "-H", "a", "-o", "json")
    answer = json.loads(out)
    assert answer["run"]["exit_code"] == status == 6
    assert answer["hosts"][0]["reclaim"]["verdict"] == "planned"
    assert "PLAN" in err
    status, out, err = run(capsys, "reclaim", "-H", "a", "-o", "jsonl", "--yes")
    assert [json.loads(line).get("host") for line in out.splitlines()] == ["gpu-srv-1", None]
    assert err == ""


def test_several_hosts(capsys: Capture, fake: type[FakeFleet]) -> None:
    """Rows are summed over hosts, and an unreachable one makes it 3."""
    fake.entries = [eight_gpus("a1"), eight_gpus("a2"), unreachable("a3")]
    status, out, _ = run(capsys, "reclaim", "-H", "a[1-3]", "--yes")
    assert status == 3
    assert out.count("STEP") == 1
    assert "a[1-2]" in out
    assert "connect_timeout" in out


def test_to_writes_the_file_whole(capsys: Capture, tmp_path: Path) -> None:
    """The answer is in the file and not on stdout; nothing is left beside it."""
    target = tmp_path / "out.json"
    status, out, _ = run(capsys, "reclaim", "-H", "a", "--yes", "-o", "json", "--to", str(target))
    assert (status, out) == (0, "")
    assert json.loads(target.read_text())["schema"] == "fleetmem/1"
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_a_bad_to_is_found_before_anything_is_done(
    capsys: Capture, tmp_path: Path, fake: type[FakeFleet]
) -> None:
    """A path that cannot be written is an error of usage, and the fleet is not touched."""
    for target in (str(tmp_path / "none" / "x"), str(tmp_path)):
        status, _, err = run(capsys, "reclaim", "-H", "a", "--yes", "--to", target)
        assert status == 2
        assert err.startswith("fleetmem: --to ")
    assert fake.approved is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["reclaim"], "--hosts"),
        (["recliam"], "reclaim"),
        (["reclaim", "-H", "a", "--gpu", "3-1"], "runs backwards"),
        (["reclaim", "-H", "a", "--pid", "0"], "is not a PID"),
        (["reclaim", "-H", "a", "--timeout", "5y"], "is not a duration"),
        (["reclaim", "-H", "a", "--timeout", "0s"], "is not a duration"),
        (["reclaim", "-H", "a", "--max-fail", "120%"], "percentage"),
        (["reclaim", "-H", "a", "--fanout", "0"], "--fanout"),
        (["reclaim", "-H", "a", "--up-to", "nuke"], "--up-to"),
        (["reclaim", "-H", "a", "-o", "xml"], "--output"),
        (["reclaim", "-H", "a", "--bogus"], "--bogus"),
        (["reclaim", "-H", "a", "\x1b[31m"], "\\x1b[31m"),
        (["runs"], "command"),
        (["runs", "show", "nope"], "nope"),
    ],
)
def test_usage_errors(capsys: Capture, words: list[str], said: str) -> None:
    """One line, a hint, exit 2, no traceback."""
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "")
    first, hint = err.splitlines()
    assert first.startswith("fleetmem: ")
    assert said in first
    assert hint.startswith("hint: ")


@pytest.mark.parametrize("output", [["-o", "json"], ["-ojson"], ["--output=json"]])
def test_usage_errors_as_json(capsys: Capture, output: list[str]) -> None:
    """The envelope too, with no hosts and the error at its top."""
    status, out, err = run(capsys, "reclaim", "--bogus", *output)
    answer = json.loads(out)
    assert answer["hosts"] == []
    assert answer["error"]["code"] == "usage_error"
    assert answer["run"]["command"] == "reclaim"
    assert answer["run"]["exit_code"] == status == 2
    assert err.startswith("fleetmem: ")


def test_errors_of_the_fleet(capsys: Capture, fake: type[FakeFleet]) -> None:
    """A list of mistakes is a line each; the code is the error's; a defect is 1."""
    fake.fail = NoHostsMatch("one\ntwo \x1b", "look here")
    assert run(capsys, "reclaim", "-H", "a") == (
        2,
        "",
        "fleetmem: one\nfleetmem: two \\x1b\nhint: look here\n",
    )
    fake.fail = ValueError("boom")
    status, _, err = run(capsys, "reclaim", "-H", "a")
    assert status == 1
    assert "ValueError: boom" in err
    assert "Traceback" not in err
    status, _, err = run(capsys, "reclaim", "-H", "a", "--debug")
    assert status == 1
    assert "Traceback" in err


def test_hosts_resolve_without_contact(capsys: Capture, fake: type[FakeFleet]) -> None:
    """A row a host; every format has the same hosts."""
    fake.entries = [idle("a1"), idle("a2")]
    status, out, _ = run(capsys, "hosts")
    assert status == 0
    assert fake.loaded["hosts"] == "@all"
    assert "2 hosts: a[1-2]" in out
    rows = json.loads(run(capsys, "hosts", "-o", "json")[1])["hosts"]
    assert [row["resolved"]["address"] for row in rows] == ["10.0.0.1"] * 2
    assert run(capsys, "hosts", "-o", "csv")[1].splitlines()[1] == "a1,10.0.0.1,22,,ssh,lab h200,"


def test_hosts_show_the_way_over_jump_hosts(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the real fleet
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = tmp_path / "i.yaml"
    file.write_text("hosts: {far: {jump: [gate, ops@inner:2222]}, gate: {}}\n")
    status, out, _ = run(capsys, "hosts", "-i", str(file))
    assert status == 0
    assert [" ".join(line.split()) for line in out.splitlines()][1:3] == [
        "far far – ssh over gate → ops@inner:2222 –",
        "gate gate – ssh –",
    ]
    found = json.loads(run(capsys, "hosts", "-i", str(file), "-o", "json")[1])["hosts"]
    assert [row["resolved"]["jump"] for row in found] == [["gate", "ops@inner:2222"], []]
    csv = run(capsys, "hosts", "-i", str(file), "-H", "far", "-o", "csv")[1].splitlines()
    assert csv == ["host,address,port,user,transport,groups,jump",
                   "far,far,,,ssh,,gate ops@inner:2222"]  # fmt: skip


def test_an_ipv6_address_is_told_from_its_port() -> None:
    entry = env.new_host("h1", "not_attempted")
    entry["resolved"] = {
        "address": "fd00::107", "port": 2222, "user": None, "transport": "ssh", "groups": [],
    }  # fmt: skip
    row = plain(resolved_lines(envelope(entry))[1])
    assert row.split() == ["h1", "[fd00::107]:2222", "–", "ssh", "–"]


def test_hosts_check(capsys: Capture, fake: type[FakeFleet]) -> None:
    """Equal hosts share a row, the troubled one is first, the code says so."""
    facts = {
        "user": "root",
        "uid": 0,
        "python": "3.11.2",
        "kernel": "6.1",
        "machine": "x86_64",
        "total_bytes": 64 << 30,
        "state_dir": "/run/fleetmem",
    }
    entries = [idle("a1"), idle("a2"), unreachable("a3")]
    for entry in entries[:2]:
        entry["readings"]["host.facts"] = {
            "outcome": "ok",
            "reason": None,
            "reading": facts,
            "seconds": 0.1,
        }
    fake.entries = entries
    status, out, _ = run(capsys, "hosts", "--check")
    rows = out.splitlines()
    assert status == 3
    assert rows[1].split()[:3] == ["–", "1", "a3"]
    assert rows[-2].split()[:3] == ["✓", "2", "a[1-2]"]
    assert rows[-1] == "3 hosts: 2 ok, 1 unreachable"


def record_one() -> str:
    """Put one reclaim into the history; its id."""
    done = envelope(eight_gpus(), exit_code=0)
    history = open_history()
    history.begin(done["run"], done["targeted"])
    history.record_host(done["run"]["id"], done["hosts"][0])
    history.finish(done)
    history.close()
    return done["run"]["id"]


def test_runs(capsys: Capture, fake: type[FakeFleet]) -> None:
    """A recorded run is listed, shown again, and serves as a selector."""
    assert "no runs" in run(capsys, "runs", "list")[1]
    run_id = record_one()
    assert run_id in run(capsys, "runs", "list")[1]
    assert json.loads(run(capsys, "runs", "list", "-o", "json")[1])["runs"][0]["id"] == run_id
    status, out, _ = run(capsys, "runs", "show", run_id[:6])
    assert status == 0
    assert "✓ reclaimed   gpu-srv-1" in out
    shown = json.loads(run(capsys, "runs", "show", run_id[:6], "-o", "json")[1])
    assert shown["run"]["id"] == run_id
    run(capsys, "hosts", "-H", f"@run:{run_id}:reclaimed")
    assert fake.loaded["settings"].run_lookup(run_id, "reclaimed") == ["gpu-srv-1"]


def test_config_says_where_values_come_from(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Defaults, the environment and files are told apart, and are what the commands use."""
    monkeypatch.setenv("FLEETMEM_FANOUT", "5")
    monkeypatch.setenv("FLEETMEM_INVENTORY", str(tmp_path / "i.yaml"))
    rows = {
        row["name"]: row
        for row in json.loads(run(capsys, "config", "show", "--origin", "-o", "json")[1])[
            "settings"
        ]
    }
    assert rows["fanout"] == {"name": "fanout", "value": 5, "origin": "environment FLEETMEM_FANOUT"}
    assert rows["inventory"]["value"] == str(tmp_path / "i.yaml")
    assert rows["output"]["origin"] == "default"
    assert "origin" not in json.loads(run(capsys, "config", "show", "-o", "json")[1])["settings"][0]
    run(capsys, "hosts")
    assert FakeFleet.loaded["settings"].fanout == 5
    monkeypatch.setenv("FLEETMEM_FANOUT", "many")
    assert run(capsys, "config", "show")[0] == 2
    assert run(capsys, "hosts")[0] == 2


def test_help_has_few_options_first(capsys: Capture) -> None:
    """The options people need, the rest under Advanced, no option in both."""
    out = run(capsys, "reclaim", "--help")[1]
    usual, advanced = out.split("\nAdvanced:")
    options = [line.split()[0].rstrip(",") for line in usual.splitlines() if line[:3] == "  -"]
    assert " ".join(options) == "-H -x --gpu --pid --user --dry-run --yes --cache -o"
    for name in ("--fanout", "--timeout", "--fail-on", "--up-to", "--debug", "--canary"):
        assert name in advanced
        assert name not in usual
    assert "\n  RUN" not in run(capsys, "diff", "--help")[1]  # arguments are no options


def test_help_and_mistakes_import_nothing_heavy() -> None:
    """``--help`` costs about what click costs."""
    script = (
        "import sys; from fleetmem.controller.cli import main; main(sys.argv[1:])\n"
        "heavy = {'rich', 'asyncssh', 'pydantic', 'yaml', 'sqlite3', 'asyncio', 'ClusterShell',"
        " 'psutil', 'tenacity'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    for words in (["--help"], ["--version"], ["recliam"]):
        done = subprocess.run(
            [sys.executable, "-c", script, *words], capture_output=True, text=True, check=True
        )
        assert done.stderr.splitlines()[-1] == "[]"


def test_the_question() -> None:
    """One host takes y, several take their number, Enter is always a no."""
    assert question("9 leftover processes", 1).startswith("Stop these 9 leftover processes on 1 ho")
    assert question("1 leftover process", 1).startswith("Stop this 1 leftover process")
    assert "number of hosts" in question("9 leftover processes", 3)
    assert [agreed(text, 1) for text in ("y\n", "YES", "", "n", "1")] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert [agreed(text, 12) for text in ("12\n", "y", "", "11", "120")] == [
        True,
        False,
        False,
        False,
        False,
    ]
