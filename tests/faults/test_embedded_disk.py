"""Disks that fill up, fail, or lose power."""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from embedded_fixtures import EFFECTS, assert_sound, attempts_in, claim, ledger_at
from losing_vfs import LosingVFS

from fencepost.ledger.embedded_apply import encoded
from fencepost.ledger.embedded_file import DatabaseFile
from fencepost.ledger.embedded_threads import Reply
from fencepost.ledger.embedded_writer import Job, Writer
from fencepost.ledger.errors import OutcomeUnknownError, PublishRefusedError, StoreError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from fencepost.ledger.embedded_apply import Transaction
    from fencepost.ledger.history import Record


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB."""
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], capture_output=True, text=True, check=False
    )
    if mount.returncode:
        pytest.skip(f"mounting a small disk is not permitted: {mount.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def test_a_full_disk_refuses_and_keeps_what_it_has(small_disk: Path) -> None:
    """The record is certainly not written, the file stays whole, and there is a way on: free some space."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(300_000))
    path = small_disk / "ledger.db"
    acknowledged: set[str] = set()

    async def fill() -> None:
        async with ledger_at(path) as store:
            with pytest.raises(PublishRefusedError, match=r"disk is full.*Nothing was written") as caught:  # noqa: PT012
                for number in range(2000):
                    refused = f"a{number}"
                    await store.log.publish(EFFECTS, claim(f"op{number}", refused, arguments=bytes(2000)))
                    acknowledged.add(refused)
            assert "Free some space" in caught.value.next_step
            assert acknowledged
            assert attempts_in(store) == acknowledged
            ballast.unlink()
            await store.log.publish(EFFECTS, claim("last", "last"))
            acknowledged.add("last")

    asyncio.run(fill())
    kept = path.read_bytes()
    assert not path.with_name("ledger.db-wal").exists()
    whole = small_disk.with_name(small_disk.name + "-whole.db")  # a rebuild needs more room
    whole.write_bytes(kept)
    assert asyncio.run(assert_sound(whole)) == acknowledged


class Disk:
    """A ledger's writer on a losing file system."""

    def __init__(self, path: Path, name: str) -> None:
        self.vfs = LosingVFS(name)
        self.file = DatabaseFile(path, vfs=name, exclusive=True)
        self.writer = Writer(self.file)

    async def publish(self, record: Record) -> None:
        value = encoded(record)
        await self.do(lambda transaction: transaction.publish(EFFECTS, record.key, value))

    async def do(self, work: Callable[[Transaction], object]) -> None:
        reply: Reply[object] = Reply()
        self.writer.submit(Job(work, reply))
        await reply.future


@contextlib.asynccontextmanager
async def losing_disk(path: Path, name: str) -> AsyncIterator[Disk]:
    disk = Disk(path, name)
    disk.file.create(0)
    try:
        yield disk
    finally:
        await disk.writer.close()
        disk.vfs.unregister()


async def publish_with_cuts(path: Path, seed: int, *, honest: bool) -> list[tuple[set[str], dict[str, bytes]]]:
    """Publish on a disk that loses power at random moments: what was acknowledged then, and what is left."""
    chance = random.Random(seed)
    acknowledged: set[str] = set()
    cuts: list[tuple[set[str], dict[str, bytes]]] = []
    async with losing_disk(path, f"losing-{seed}-{honest}") as disk:

        def strike() -> None:
            if chance.random() < 0.06:
                cuts.append((set(acknowledged), disk.vfs.image(chance)))

        async def agent(number: int) -> None:
            for i in range(12):
                attempt = f"{number}.{i}"
                record = claim(f"op{i % 5}", attempt, arguments=bytes(chance.randrange(1, 3000)))
                await disk.publish(record)
                acknowledged.add(attempt)

        await disk.do(lambda transaction: transaction.sql.wal_autocheckpoint(12))  # so that cuts hit those as well
        disk.vfs.honest, disk.vfs.before = honest, strike
        await asyncio.gather(*(agent(number) for number in range(2)))
    return cuts


def lost_in(acknowledged: set[str], image: dict[str, bytes], place: Path) -> set[str]:
    """What was acknowledged before the power cut and is not there afterwards."""
    place.mkdir()
    for name, data in image.items():
        (place / Path(name).name).write_bytes(data)
    return acknowledged - asyncio.run(assert_sound(place / "ledger.db"))


@pytest.mark.parametrize("seed", range(4))
def test_a_power_cut_loses_nothing_that_was_acknowledged(tmp_path: Path, seed: int) -> None:
    """Whatever part of the unsynced sectors survives: the file is whole and has every acknowledged record."""
    cuts = asyncio.run(publish_with_cuts(tmp_path / "ledger.db", seed, honest=True))
    assert sum(bool(acknowledged) for acknowledged, _ in cuts) >= 5
    for number, (acknowledged, image) in enumerate(cuts):
        assert lost_in(acknowledged, image, tmp_path / str(number)) == set()


def test_a_disk_that_lies_about_syncs_is_found_out_by_the_same_test(tmp_path: Path) -> None:
    """The power cuts above are real ones: without syncs they do lose records."""
    losses = 0
    for number, (acknowledged, image) in enumerate(
        asyncio.run(publish_with_cuts(tmp_path / "ledger.db", 0, honest=False))
    ):
        try:
            losses += bool(lost_in(acknowledged, image, tmp_path / str(number)))
        except (AssertionError, StoreError):
            losses += 1
    assert losses


def test_a_failed_sync_is_never_acknowledged_and_not_retried(tmp_path: Path) -> None:
    """The outcome is unknown; the connection is not used again; later publishes are whole."""
    path = tmp_path / "ledger.db"

    async def work() -> None:
        async with losing_disk(path, "failing") as disk:
            await disk.publish(claim("a", "1"))
            first = disk.writer._connection
            disk.vfs.failing = True
            answers = await asyncio.gather(
                *(disk.publish(claim(f"op{i}", "lost")) for i in range(3)), return_exceptions=True
            )
            assert [type(answer) for answer in answers] == [OutcomeUnknownError] * 3
            assert all(not answer.retryable for answer in answers if isinstance(answer, OutcomeUnknownError))
            disk.vfs.failing = False
            await disk.publish(claim("a", "2"))
            assert disk.writer._connection is not first
        assert await assert_sound(path) >= {"1", "2"}

    asyncio.run(work())
