"""Several processes on one file: at the same time, killed, forked."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import embedded_fixtures as fixtures
import pytest
from embedded_fixtures import EFFECTS, claim, ledger_at

from fencepost.ledger.errors import PublishRefusedError, StoreError

SCRIPT = Path(fixtures.__file__)


def start(path: Path, name: str, *, agents: int, count: int, ops: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, str(SCRIPT), str(path), name, str(agents), str(count), str(ops)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> set[str]:
    out, _ = process.communicate(timeout=100)
    assert process.returncode == 0
    return set(out.split())


def test_processes_that_publish_together_lose_nothing(tmp_path: Path) -> None:
    """Four processes, which also create the file in a race: every record is there once, offsets are dense."""
    path = tmp_path / "state" / "ledger.db"
    processes = [start(path, f"p{i}", agents=8, count=20) for i in range(4)]
    acknowledged = {attempt for process in processes for attempt in finish(process)}
    assert len(acknowledged) == 4 * 8 * 20
    assert asyncio.run(fixtures.assert_sound(path)) == acknowledged


def test_processes_that_race_for_the_same_operations_owe_nothing(tmp_path: Path) -> None:
    """Records that leave out what others wrote are followed by re-assertions: no debt, nothing forgotten."""
    path = tmp_path / "ledger.db"
    processes = [start(path, f"p{i}", agents=4, count=15, ops=5) for i in range(3)]
    acknowledged = {attempt for process in processes for attempt in finish(process)}
    assert asyncio.run(fixtures.assert_sound(path)) == acknowledged
    assert not [row for row in fixtures.documents_at(path) if row[2] == "debts"]


def test_a_killed_process_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """Killed again and again in the middle of group commits, while another process goes on."""
    path = tmp_path / "ledger.db"
    acknowledged: set[str] = set()
    survivor = start(path, "survivor", agents=2, count=150)
    for run in range(5):
        process = start(path, f"victim{run}", agents=8, count=100_000)
        assert process.stdout is not None
        acknowledged |= {process.stdout.readline().strip() for _ in range(20 + 37 * run)}
        process.kill()
        acknowledged |= set(process.communicate(timeout=30)[0].split())  # each line was one write: none is cut
    acknowledged |= finish(survivor)
    assert asyncio.run(fixtures.assert_sound(path)) >= acknowledged


def test_a_process_forked_later_is_refused(tmp_path: Path) -> None:
    """The child gets a clear error and can open the ledger for itself; the parent goes on."""
    script = f"""
        import asyncio, gc, os, sys
        sys.path.insert(0, {str(SCRIPT.parent)!r})
        from pathlib import Path
        from embedded_fixtures import EFFECTS, claim, ledger_at
        from fencepost.ledger.errors import StoreUnavailableError
        path = Path({str(tmp_path / "ledger.db")!r})

        async def child(store):
            try:
                await store.log.publish(EFFECTS, claim("a", "child"))
            except StoreUnavailableError as error:
                assert "after the fork" in str(error)
            else:
                raise AssertionError
            await store.close()
            del store
            gc.collect()
            async with ledger_at(path) as own:
                assert await own.log.publish(EFFECTS, claim("b", "child")) == 1

        async def main():
            async with ledger_at(path) as store:
                await store.log.publish(EFFECTS, claim("a", "parent"))
                pid = os.fork()
                if pid == 0:
                    asyncio._set_running_loop(None)
                    asyncio.run(child(store))
                    os._exit(0)
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
                assert await store.log.publish(EFFECTS, claim("c", "parent")) == 2

        asyncio.run(main())
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=60)
    assert asyncio.run(fixtures.assert_sound(tmp_path / "ledger.db")) == {"parent", "child"}


@pytest.mark.parametrize("deed", ["remove", "replace"])
def test_a_file_that_is_taken_away_while_it_is_open_is_not_written(tmp_path: Path, deed: str) -> None:
    """What would be written has no name any more, so it must not be acknowledged, nor read."""

    async def run() -> None:
        path = tmp_path / "ledger.db"
        async with ledger_at(path) as store:
            await store.log.publish(EFFECTS, claim("a", "1"))
        shutil.copy(path, tmp_path / "old.db")
        async with ledger_at(path) as store:
            await store.log.publish(EFFECTS, claim("a", "2"))
            if deed == "remove":
                path.unlink()
            else:
                os.replace(tmp_path / "old.db", path)  # noqa: PTH105 - the deed
            for _ in range(2):
                with pytest.raises(PublishRefusedError, match="removed or replaced"):
                    await store.log.publish(EFFECTS, claim("a", "3"))
                with pytest.raises(StoreError, match="removed or replaced"):
                    await store.projection.read(EFFECTS, [])

    asyncio.run(run())
