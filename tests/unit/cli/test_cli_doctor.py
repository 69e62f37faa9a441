"""`fencepost doctor`: the topics compared with what the ledger's own log says, and how it is told."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence

import pytest
from click.testing import CliRunner, Result

from fencepost.ledger import cli, log_keys
from fencepost.ledger.errors import GuaranteeError
from fencepost.ledger.facts import AgentFact, AgentKind, encode_agent
from fencepost.ledger.history import LogEntry, PositionedFact, Record
from fencepost.ledger.ports import Check, Terms
from fencepost.ledger.positions import Partition, Position
from fencepost.ledger.setup import HOME

OWN = "the ledger's own topics"
EFFECTS, AGENTS = "effects=" + "e" * 22 + "/12", "agents=" + "a" * 22 + "/12"
IDENTITY = f"{EFFECTS};{AGENTS};murmur2_random"
WEAK = Check("p.effects: replicas", ok=False, found="1", wanted="at least 3", severity="warn")


def created(identity: str) -> bytes:
    return encode_agent(AgentFact(kind=AgentKind.LEDGER_CREATED, ledger_id="l1", evidence=identity))


FORMER = PositionedFact(Position(0, 3), created("elsewhere"))


class FakeStore:
    url = "kafka://k:9092/p"

    def __init__(self, identity: str | None, records: Sequence[Record], checks: Sequence[Check] = (WEAK,)) -> None:
        self._identity = identity
        self._records = records
        self._checks = checks

    async def check(self) -> Sequence[Check]:
        return self._checks

    async def terms(self) -> Terms:
        if self._identity is None:
            raise GuaranteeError("refused.", checks=[])
        logging.getLogger("fencepost.store").warning("development profile, not for money: %s", WEAK.name)
        return Terms(self._identity)

    def reader(self) -> FakeStore:
        return self

    def entries(self, partition: Partition) -> Iterator[LogEntry]:
        assert partition == HOME
        for offset, record in enumerate(self._records):
            yield LogEntry(partition, offset, 0, record.key, record, "")

    def close(self) -> FakeStore:
        return self

    def __await__(self) -> Iterator[None]:
        yield from ()


def doctor(monkeypatch: pytest.MonkeyPatch, store: FakeStore, *args: str) -> Result:
    monkeypatch.setattr("fencepost.ledger.stores.open_store", lambda _: store)
    return CliRunner().invoke(cli.cli, ["--url", "kafka://k:9092/p?projection=redis://r:6379/0", "doctor", *args])


def own_line(result: Result) -> dict[str, str] | None:
    checks = json.loads(result.stdout)["checks"]
    return next((c for c in checks if c["name"] == OWN), None)


def test_the_same_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics that are those of the log's own record are one more line that is well."""
    store = FakeStore(IDENTITY, [Record("session/x", (), None, ""), Record(log_keys.LEDGER, (), created(IDENTITY), "")])
    result = doctor(monkeypatch, store, "--json")
    assert result.exit_code == 0, result.stderr
    assert own_line(result) == {"name": OWN, "state": "ok", "found": "the same", "wanted": "as recorded in the log"}


def test_other_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other topics than the recorded ones are named in the table and in the error: exit code 1."""
    other = IDENTITY.replace("eeee", "ffff")
    store = FakeStore(other, [Record(log_keys.LEDGER, (), created(IDENTITY), "")])
    result = doctor(monkeypatch, store, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["ok"] is False
    line = own_line(result)
    assert line is not None
    assert (line["state"], line["found"], line["wanted"]) == ("refuse", other.split(";")[0], EFFECTS)
    assert json.loads(result.stderr)["error"] == "GuaranteeError"
    assert "export" in json.loads(result.stderr)["next_step"]


def test_after_a_move_the_last_fact_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger that was brought here has the fact of this place behind that of its former one."""
    moved = Record(log_keys.LEDGER, (FORMER,), created(IDENTITY), "")
    assert doctor(monkeypatch, FakeStore(IDENTITY, [moved])).exit_code == 0
    kept = Record(log_keys.LEDGER, (FORMER, PositionedFact(Position(1, 0), created(IDENTITY))), None, "")
    assert doctor(monkeypatch, FakeStore(IDENTITY, [kept])).exit_code == 0


@pytest.mark.parametrize("identity", [None, "", IDENTITY])
def test_nothing_to_compare_with(monkeypatch: pytest.MonkeyPatch, identity: str | None) -> None:
    """Without settings that hold, a name of the topics, or a record of them, there is no such line."""
    result = doctor(monkeypatch, FakeStore(identity, []), "--json")
    assert result.exit_code == 0, result.stderr
    assert own_line(result) is None


def test_warnings_are_told_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A warning is a line of the table, and is not told again."""
    result = doctor(monkeypatch, FakeStore(IDENTITY, [Record(log_keys.LEDGER, (), created(IDENTITY), "")]))
    assert (result.exit_code, result.stderr, caplog.text) == (0, "", "")
    assert result.stdout.count(WEAK.name) == 1


def test_the_table_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much there is to tell, no line of the table has more than 120 characters."""
    silent = "silent: " + ", ".join(f"effects/{n}" for n in range(40))
    checks = [WEAK, Check("projector runs", ok=False, found=silent, wanted="seen in the last 10 s", severity="warn")]
    store = FakeStore("x=1/2;y=1/2", [Record(log_keys.LEDGER, (), created(IDENTITY), "")], checks)
    result = doctor(monkeypatch, store)
    assert result.exit_code == 1
    assert max(map(len, result.stdout.splitlines())) <= 120
    assert "effects/39" in result.stdout


def test_init_tells_what_is_weak_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Creating a ledger on a development broker warns of each weak setting once, and logs nothing besides."""

    async def initialise(store: FakeStore, **options: object) -> str:
        del options
        await store.terms()  # which logs the same
        return "l1"

    monkeypatch.setattr("fencepost.ledger.stores.open_store", lambda _: FakeStore(IDENTITY, []))
    monkeypatch.setattr("fencepost.ledger.setup.initialise", initialise)
    result = CliRunner().invoke(cli.cli, ["--url", "kafka://k:9092/p?projection=redis://r:6379/0", "init"])
    assert (result.exit_code, result.stdout.strip()) == (0, "l1")
    assert result.stderr.count(WEAK.name) == 1
    assert caplog.records == []


def test_a_partition_that_was_never_applied_has_no_age() -> None:
    """Before any projector has run nothing is known of its age, in the status and in the lag."""
    from fencepost.ledger.cli_projector import _lag_row  # noqa: PLC0415
    from fencepost.ledger.ports import Header  # noqa: PLC0415

    assert _lag_row("effects/0", 5, Header(now_ms=1_790_000_000_000))["age_s"] is None
    assert _lag_row("effects/0", 5, Header(now_ms=1_790_000_000_000, seen_ms=1_789_999_999_000))["age_s"] == 1
