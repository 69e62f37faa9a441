"""The files as a power cut or a kill leaves them, at any moment: with the -shm file, without it, with a wrong one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import selectors
import signal
import subprocess
import sys
from pathlib import Path

import embedded_fixtures as fixtures
import pytest
from embedded_fixtures import EFFECTS, assert_sound, attempts_in, claim, ledger_at

from fencepost.deploy.processes import wait_until
from fencepost.ledger.errors import StoreError

MOMENTS = 8


class Writers:
    """A process that publishes without end, and can be held still to look at its files."""

    def __init__(self, path: Path) -> None:
        self.acknowledged: set[str] = set()
        command = [sys.executable, fixtures.__file__, str(path), "w", "4", "100000", "40"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._out = self._process.stdout.fileno()
        os.set_blocking(self._out, False)
        self._rest = b""

    def until(self, count: int) -> None:
        """Go on until that many more are acknowledged; then stand still."""
        wanted = len(self.acknowledged) + count
        with selectors.DefaultSelector() as ready:
            ready.register(self._out, selectors.EVENT_READ)
            while len(self.acknowledged) < wanted:
                assert ready.select(timeout=60), "nothing is published any more"
                self._read()
        self._process.send_signal(signal.SIGSTOP)
        assert wait_until(lambda: " T " in Path(f"/proc/{self._process.pid}/stat").read_text(), 10)
        self._read()

    def _read(self) -> None:
        while chunk := self._chunk():
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            self.acknowledged |= {line.decode() for line in lines}

    def _chunk(self) -> bytes:
        try:
            return os.read(self._out, 65536)
        except BlockingIOError:
            return b""

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=30)


def copy(path: Path, place: Path, shm: str) -> Path:
    place.mkdir()
    for name in ("", "-wal"):
        source = path.with_name(path.name + name)
        if source.exists():
            (place / source.name).write_bytes(source.read_bytes())
    if shm == "kept":
        (place / "ledger.db-shm").write_bytes(path.with_name("ledger.db-shm").read_bytes())
    elif shm == "wrong":
        (place / "ledger.db-shm").write_bytes(random.Random(1).randbytes(32768))
    return place / path.name


@pytest.mark.slow
def test_a_copy_of_any_moment_has_all_that_was_acknowledged(tmp_path: Path) -> None:
    """Four agents publish; what is on the disk at any moment opens, verifies, and lacks nothing acknowledged."""
    path = tmp_path / "ledger.db"
    writers, chance = Writers(path), random.Random(4)
    copies: list[tuple[set[str], Path]] = []
    try:
        for moment in range(MOMENTS):
            writers.until(chance.randrange(1, 120))
            places = [(shm, tmp_path / f"{moment}-{shm}") for shm in ("kept", "missing", "wrong")]
            copies += [(set(writers.acknowledged), copy(path, place, shm)) for shm, place in places]
            writers.go_on()
    finally:
        writers.kill()
    for acknowledged, file in copies:
        assert asyncio.run(assert_sound(file)) >= acknowledged
    assert asyncio.run(assert_sound(path)) >= writers.acknowledged


@pytest.mark.slow
def test_a_copy_without_its_write_ahead_log_is_an_earlier_state_or_refused(tmp_path: Path) -> None:
    """Whoever forgets the -wal file has an older ledger (which watermarks find out); a mixture of two is found out."""
    path = tmp_path / "ledger.db"
    writers, chance = Writers(path), random.Random(6)
    earlier: list[set[str]] = []
    try:
        for moment in range(MOMENTS):
            writers.until(chance.randrange(1, 150))
            file = copy(path, tmp_path / str(moment), "missing")
            writers.go_on()
            file.with_name("ledger.db-wal").unlink()
            with contextlib.suppress(
                StoreError, AssertionError
            ):  # refused, or found out by what `assert_sound` looks at
                earlier.append(asyncio.run(assert_sound(file)))
    finally:
        writers.kill()
    everything = asyncio.run(assert_sound(path))
    assert all(attempts <= everything for attempts in earlier)


@pytest.mark.parametrize("shm", ["kept", "missing", "wrong"])
def test_a_kill_at_any_write_loses_nothing(tmp_path: Path, shm: str) -> None:
    """A process that is killed leaves what it had written; its own -shm file is not believed."""

    async def run() -> None:
        path = tmp_path / "ledger.db"
        async with ledger_at(path) as store:
            for number in range(12):
                await store.log.publish(EFFECTS, claim(f"op{number}", f"a{number}"))
                file = copy(path, tmp_path / f"at-{number}", shm)
                async with ledger_at(file) as left:
                    assert attempts_in(left) == {f"a{n}" for n in range(number + 1)}

    asyncio.run(run())
