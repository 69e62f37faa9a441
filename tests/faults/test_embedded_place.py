"""Places where no ledger may live: network file systems, and what cannot be written."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from embedded_fixtures import EFFECTS, claim, ledger_at

from fencepost.ledger import embedded_place, urls
from fencepost.ledger.embedded import open_store
from fencepost.ledger.embedded_place import MAGIC, NETWORK, file_system, magic_of, mounted_type
from fencepost.ledger.errors import GuaranteeError, StoreError, StoreUnavailableError
from fencepost.ledger.ports import DocumentKey
from fencepost.ledger.projection import OPS

if TYPE_CHECKING:
    from collections.abc import Iterator

EXT = 0xEF53


def refused(path: Path, kind: str) -> None:
    async def run() -> None:
        store = open_store(urls.parse(f"sqlite://{path}"))
        for call in (store.initialise, lambda: store.projection.read(EFFECTS, [])):
            with pytest.raises(GuaranteeError, match=f"network file system .{kind}.") as caught:
                await call()
            assert "local disk" in caught.value.next_step
        with pytest.raises(GuaranteeError):
            store.reader().bounds(EFFECTS)
        checks = {check.name: check for check in await store.check()}
        assert not checks["file system"].ok
        await store.close()

    asyncio.run(run())


@pytest.mark.parametrize("magic", sorted(MAGIC))
def test_a_network_file_system_is_refused_by_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, magic: int
) -> None:
    """Nothing is made there, and nothing opened: locks and shared memory do not hold between machines."""
    monkeypatch.setattr(embedded_place, "magic_of", lambda _: magic)
    refused(tmp_path / "deep" / "ledger.db", MAGIC[magic])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", sorted(NETWORK))
def test_a_network_file_system_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """FUSE file systems have one number: sshfs is told by the table of mounts."""
    monkeypatch.setattr(embedded_place, "mounted_type", lambda _: kind)
    refused(tmp_path / "ledger.db", kind)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_ledger_that_is_reached_over_the_network_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been made on the machine that exports it."""
    path = tmp_path / "ledger.db"

    async def make() -> None:
        async with ledger_at(path) as store:
            await store.log.publish(EFFECTS, claim("a", "1"))

    asyncio.run(make())
    monkeypatch.setattr(embedded_place, "magic_of", lambda _: 0x6969)
    refused(path, "nfs")


def test_local_file_systems_are_taken(tmp_path: Path) -> None:
    """Where the tests run is one; what cannot be told is taken."""
    assert file_system(tmp_path) not in NETWORK
    assert mounted_type(Path("/proc")) == "proc"
    assert magic_of(Path("/proc")) == 0x9FA0
    assert magic_of(tmp_path / "nothing") == 0


def test_a_link_is_followed_to_where_the_file_really_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory on this disk that leads elsewhere is elsewhere."""
    (tmp_path / "there").mkdir()
    (tmp_path / "here").symlink_to(tmp_path / "there")
    seen: list[Path] = []

    def magic(path: Path) -> int:
        seen.append(path)
        return EXT

    monkeypatch.setattr(embedded_place, "magic_of", magic)
    file_system(tmp_path / "here" / "ledger.db")
    assert seen == [(tmp_path / "there").resolve()]


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A directory with a ledger of one record that can only be read."""
    place = tmp_path / "place"
    place.mkdir()
    mounted = os.geteuid() == 0  # permissions do not bind root
    if mounted:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], capture_output=True, check=False
        )
        if done.returncode:
            pytest.skip(f"mounting is not permitted: {done.stderr.decode().strip()}")

    async def make() -> None:
        async with ledger_at(place / "ledger.db") as store:
            await store.log.publish(EFFECTS, claim("a", "1"))

    asyncio.run(make())
    with contextlib.ExitStack() as after:
        if mounted:
            after.callback(subprocess.run, ["umount", "--lazy", str(place)], check=True)
            subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        else:
            after.callback(place.chmod, 0o700)
            (place / "ledger.db").chmod(0o400)
            place.chmod(0o500)
        yield place


def test_a_read_only_directory_is_refused_and_named(read_only: Path) -> None:
    """Reading needs the lock file beside it too: the error says so, and nothing hangs."""

    async def run() -> None:
        store = open_store(urls.parse(f"sqlite://{read_only}/ledger.db"))
        with pytest.raises(StoreError) as caught:
            await store.log.publish(EFFECTS, claim("a", "2"))
        assert "read-only" in str(caught.value) or "cannot be opened" in str(caught.value)
        assert "director" in caught.value.next_step
        with pytest.raises(StoreError):
            await store.projection.read(EFFECTS, [DocumentKey(OPS, "a")])
        await store.close()
        with pytest.raises(StoreUnavailableError, match="cannot be created"):
            await open_store(urls.parse(f"sqlite://{read_only}/new/ledger.db")).initialise()

    asyncio.run(run())
