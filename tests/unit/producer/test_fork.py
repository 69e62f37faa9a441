"""A log does not survive a fork: it says so, and the child can open its own."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unit.producer.mock_kafka import MockKafka

SCRIPT = """
import asyncio, gc, os, sys
from fencepost.ledger import urls
from fencepost.ledger.errors import StoreUnavailableError
from fencepost.ledger.history import Record
from fencepost.ledger.positions import Partition, Topic
from fencepost.producer.store import open_log

url = urls.parse(f"kafka://{sys.argv[1]}/unit?projection=redis://127.0.0.1/0")
log = open_log(url)

def publish(log):
    return asyncio.run(log.publish(Partition(Topic.AGENTS, 0), Record("session/a/s", (), b"f")))

assert publish(log) == 0
child = os.fork()
if child == 0:
    try:
        publish(log)
    except StoreUnavailableError as error:
        assert "after the fork" in str(error), error
    else:
        raise SystemExit("the parent's log worked in the child")
    asyncio.run(log.close())  # does nothing
    own = open_log(url)
    assert own._channel is not log._channel
    assert publish(own) == 1
    if "close" in sys.argv:
        asyncio.run(own.close())
    log = None
    gc.collect()  # frees the parent's log and must not wait for the parent's threads
    sys.exit(7)  # with the interpreter's whole clean-up
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert publish(log) == 2
asyncio.run(log.close())
print("parent done")
"""


def _run(mock: MockKafka, *arguments: str) -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SCRIPT, mock.bootstrap, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "parent done\n"


def test_a_forked_child_refuses_and_opens_its_own(mock: MockKafka) -> None:
    """The parent's log refuses in the child; the child's own works; the child's end does not harm the parent."""
    _run(mock, "close")


def test_a_forked_child_may_end_without_closing(mock: MockKafka) -> None:
    """A child that just exits does not hang on threads that only the parent has."""
    _run(mock)


def test_what_was_published_survives_the_end_of_the_process(mock: MockKafka) -> None:
    """A process that publishes and ends at once, without waiting or closing, still gets its record out."""
    script = SCRIPT.split("assert publish", 1)[0] + (
        "async def leave():\n"
        "    task = asyncio.ensure_future(log.publish(Partition(Topic.AGENTS, 0), Record('session/a/s', (), b'f')))\n"
        "    await asyncio.sleep(0)\n"
        "asyncio.run(leave())\n"
    )
    mock.delay(300)
    command = [sys.executable, "-c", script, mock.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    mock.delay(0)
    script = SCRIPT.split("assert publish", 1)[0] + "assert publish(log) == 1\n"
    done = subprocess.run(
        [*command[:2], script, mock.bootstrap], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
