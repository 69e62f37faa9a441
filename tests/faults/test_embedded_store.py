"""What the embedded store promises beyond the conformance suite."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import apsw
import pytest
from embedded_fixtures import AGENTS, EFFECTS, claim, documents_at, fence, ledger_at, log_of

from fencepost.ledger import log_keys, urls
from fencepost.ledger.embedded import default_path, open_store
from fencepost.ledger.embedded_apply import Transaction
from fencepost.ledger.embedded_reader import Reader
from fencepost.ledger.errors import (
    FencepostError,
    InvalidArgumentError,
    PublishRefusedError,
    RecordTooLargeError,
)
from fencepost.ledger.facts import AgentFact, AgentKind, EffectKind, decode_effect, encode_agent
from fencepost.ledger.history import MAX_RECORD_BYTES, Record
from fencepost.ledger.operation_fold import fold_operation
from fencepost.ledger.operations import AttemptState
from fencepost.ledger.ports import DocumentKey, Header
from fencepost.ledger.positions import Partition, Topic
from fencepost.ledger.projection import OPS, read_history

if TYPE_CHECKING:
    from pathlib import Path


def test_a_record_is_applied_when_its_publish_returns(tmp_path: Path) -> None:
    """Offsets count from 0, and header and documents already show the record."""

    async def run() -> None:
        async with ledger_at(tmp_path / "ledger.db") as store:
            for number in range(3):
                offset = await store.log.publish(EFFECTS, claim(f"op{number}", f"a{number}"))
                header = await store.projection.advanced(EFFECTS, number, timeout_s=5)
                assert (offset, header.applied_offset, header.settled_offset) == (number, number + 1, number + 1)
                assert header.opened
                assert header.now_ms == header.seen_ms
            snapshot = await store.projection.read(EFFECTS, [DocumentKey(OPS, "op1"), DocumentKey(OPS, "no")])
            assert list(snapshot.documents) == [DocumentKey(OPS, "op1")]
            assert (await store.projection.read(AGENTS, [])).header.applied_offset == 0

    asyncio.run(run())


def test_debts_are_paid_in_the_same_transaction(tmp_path: Path) -> None:
    """A fenced intent of a writer that knew nothing: the verdict is in the log before anyone can look."""

    async def run() -> None:
        async with ledger_at(tmp_path / "ledger.db") as store:
            key = log_keys.fence("nightly", "main", 0, lambda _: 0)
            await store.log.publish(EFFECTS, fence(key, "main", 7))
            await store.log.publish(EFFECTS, claim("op", "late"))
            await store.log.publish(EFFECTS, claim("op", "other", branch_id="side"))
            *_, last = log_of(store)
            assert last.record is not None
            assert last.record.fact is None
            kinds = [decode_effect(fact).kind for _, fact in last.record.history]
            assert sorted(kinds) == [EffectKind.INTENDED, EffectKind.INTENDED, EffectKind.REJECTED]
            operation = fold_operation("op", last.record.history)
            assert operation.attempts["late"].state is AttemptState.REJECTED
            assert operation.attempts["other"].state is AttemptState.OWNER
            header = (await store.projection.scan(EFFECTS, "debts")).header
            assert header.settled_offset == header.applied_offset == last.offset + 1

    asyncio.run(run())


def test_rebuild_gives_the_same_documents_and_another_incarnation(tmp_path: Path) -> None:
    """Drop the projection, derive it again: nothing differs, and readers can tell that it was lost."""
    path = tmp_path / "ledger.db"
    seen: list[tuple[Partition, int, int]] = []

    async def run() -> tuple[str, str]:
        async with ledger_at(path) as store:
            for number in range(30):
                await store.log.publish(EFFECTS, claim(f"op{number % 7}", f"a{number}", seq=number + 1))
            key = log_keys.session("nightly", "s")
            fact = encode_agent(AgentFact(kind=AgentKind.SESSION_OPENED, agent_id="nightly", session_id="s"))
            await store.log.publish(AGENTS, Record(key, (), fact))
            with pytest.raises(PublishRefusedError, match="a fact is undecodable"):
                await store.log.publish(EFFECTS, Record("strange", (), b"no fact"))
            before = (await store.projection.read(EFFECTS, [])).header.incarnation
        documents = documents_at(path)
        async with ledger_at(path) as store:
            await store.rebuild(lambda *progress: seen.append(progress))
            after = (await store.projection.read(EFFECTS, [])).header.incarnation
        assert documents_at(path) == documents
        assert not any(row[3] == "strange" for row in documents)
        return before, after

    before, after = asyncio.run(run())
    assert before
    assert before != after
    assert {partition for partition, done, total in seen if done == total} == {EFFECTS, AGENTS}


def test_a_rebuild_that_fails_leaves_everything_as_it_was(tmp_path: Path) -> None:
    """The progress callback raises in the middle: one transaction, so nothing happened."""
    path = tmp_path / "ledger.db"

    def interrupt(_partition: Partition, done: int, _total: int) -> None:
        if done:
            raise KeyError("stop")

    async def run() -> None:
        async with ledger_at(path) as store:
            await store.log.publish(EFFECTS, claim("op", "a"))
            before = await store.projection.scan(EFFECTS, OPS)
            with pytest.raises(FencepostError, match="KeyError"):
                await store.rebuild(interrupt)
            after = await store.projection.scan(EFFECTS, OPS)
            assert after.documents == before.documents
            assert after.header.incarnation == before.header.incarnation
            assert await store.log.publish(EFFECTS, claim("op", "b")) == 1

    asyncio.run(run())


def test_agents_share_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 publishes at once need a few transactions, not 64."""
    commits: list[None] = []
    monkeypatch.setattr(Reader, "poke", lambda _self: commits.append(None))

    async def run() -> None:
        async with ledger_at(tmp_path / "ledger.db") as store:
            await store.log.publish(EFFECTS, claim("first", "a"))
            publishes = [store.log.publish(EFFECTS, claim(f"op{i}", "a")) for i in range(64)]
            assert await asyncio.gather(*publishes) == list(range(1, 65))  # one process keeps its order

    asyncio.run(run())
    assert len(commits) <= 10


def test_one_bad_record_fails_alone(tmp_path: Path) -> None:
    """Records that share its transaction are written; its offset goes to the next."""

    async def run() -> None:
        async with ledger_at(tmp_path / "ledger.db") as store:
            huge = [claim("big", f"b{i}", arguments=b"x" * 600_000) for i in range(2)]
            records = [claim("a", "1"), *huge, claim("a", "2"), claim("b", "1")]
            answers = await asyncio.gather(
                *(store.log.publish(EFFECTS, record) for record in records), return_exceptions=True
            )
            assert isinstance(answers[2], RecordTooLargeError)  # the history of both would not fit
            assert [type(answer) for answer in answers].count(int) == 4
            assert [entry.offset for entry in log_of(store)] == list(range(5))  # 4 and a re-assertion of "a"

    asyncio.run(run())


def test_too_large_and_unencodable_records_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    """The error says size and limit; the log stays empty."""

    async def run() -> None:
        async with ledger_at(tmp_path / "ledger.db") as store:
            with pytest.raises(RecordTooLargeError) as caught:
                await store.log.publish(EFFECTS, Record("k", (), b"x" * (MAX_RECORD_BYTES + 1)))
            assert caught.value.size_bytes > caught.value.limit_bytes == MAX_RECORD_BYTES
            with pytest.raises(RecordTooLargeError):
                await store.log.publish(EFFECTS, Record("k", (), b"x" * (2 * MAX_RECORD_BYTES)))
            with pytest.raises(PublishRefusedError, match="surrogate"):
                await store.log.publish(EFFECTS, Record("\ud800", (), b"x"))
            with pytest.raises(InvalidArgumentError, match="partition"):
                await store.log.publish(Partition(Topic.EFFECTS, 1), claim("a", "1"))
            assert log_of(store) == []

    asyncio.run(run())


def test_pages_cover_a_collection(tmp_path: Path) -> None:
    """Every document once, whatever the size of a page, while others are added."""

    async def run() -> None:
        async with ledger_at(tmp_path / "ledger.db") as store:
            await asyncio.gather(*(store.log.publish(EFFECTS, claim(f"op{i:03}", "a")) for i in range(50)))
            for count in (1, 7, 50, 500):
                found, cursor = [], ""
                for _ in range(60):
                    snapshot, cursor = await store.projection.page(EFFECTS, OPS, cursor=cursor, count=count)
                    found += [key.key for key in snapshot.documents]
                    if not cursor:
                        break
                    await store.log.publish(EFFECTS, claim("aaa", f"{count}.{len(found)}"))
                assert [key for key in found if key != "aaa"] == [f"op{i:03}" for i in range(50)]

    asyncio.run(run())


def test_beats_tell_how_long_ago(tmp_path: Path) -> None:
    """Sessions that never beat are not in the answer; the beats of one process are seen by another."""

    async def run() -> None:
        path = tmp_path / "ledger.db"
        async with ledger_at(path) as here, ledger_at(path) as there:
            await here.projection.beat(["s1", "s2"])
            beats = await there.projection.beats(["s1", "s2", "s3"])
            assert beats.keys() == {"s1", "s2"}
            assert all(0 <= age < 30 for age in beats.values())

    asyncio.run(run())


def test_the_log_generation_is_that_of_the_first_initialisation(tmp_path: Path) -> None:
    """Positions of a ledger that moved here sort before those that are written here."""

    async def run() -> None:
        store = open_store(urls.parse(f"sqlite://{tmp_path}/ledger.db"))
        await store.initialise(partitions=8, development=True, generation=3)
        await store.initialise()
        assert (await store.projection.read(EFFECTS, [])).header.generation == 3
        await store.log.publish(EFFECTS, claim("a", "1"))
        document = (await store.projection.read(EFFECTS, [DocumentKey(OPS, "a")])).documents[DocumentKey(OPS, "a")]
        assert [position for position, _ in read_history(document)] == [(3, 0)]
        await store.close()

    asyncio.run(run())


def test_a_log_that_became_shorter_is_not_written(tmp_path: Path) -> None:
    """An old copy was put in its place: what this process knows to be acknowledged is missing."""

    async def run() -> None:
        path = tmp_path / "ledger.db"
        async with ledger_at(path) as store:
            await store.log.publish(EFFECTS, claim("a", "1"))
        with contextlib.closing(apsw.Connection(str(path))) as sql:
            transaction = Transaction(sql, path, {EFFECTS: Header(applied_offset=2)})
            with pytest.raises(PublishRefusedError, match="older state"):
                transaction.publish(EFFECTS, "a", b"")

    asyncio.run(run())


def test_the_doctor_names_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a git working tree, in the working directory, and readable by others: warnings; elsewhere none."""

    async def failed() -> dict[str, str]:
        async with ledger_at(tmp_path / "work" / "ledger.db") as store:
            return {check.name: check.severity for check in await store.check() if not check.ok}

    assert "place" not in asyncio.run(failed())
    (tmp_path / "work" / "ledger.db").chmod(0o644)
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)
        assert asyncio.run(failed()) == {"place": "warn", "permissions": "warn"}
    (tmp_path / ".git").mkdir()
    assert asyncio.run(failed()) == {"place": "warn", "permissions": "warn"}


def test_the_default_place_is_the_state_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`XDG_STATE_HOME` if it is absolute, else what it defaults to."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert default_path() == tmp_path / ".local" / "state" / "fencepost" / "ledger.db"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert default_path() == tmp_path / ".local" / "state" / "fencepost" / "ledger.db"
    monkeypatch.setenv("XDG_STATE_HOME", "/var/state")
    assert str(default_path()) == "/var/state/fencepost/ledger.db"
