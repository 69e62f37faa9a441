"""One channel a process for the same brokers and settings, counted, and dropped in a forked child."""

from __future__ import annotations

import atexit
import os
import threading
from typing import TYPE_CHECKING

from .channel import Channel

if TYPE_CHECKING:
    from .settings import Settings


class _Channels:
    """The channels of one process and how many logs use each."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.shared: dict[tuple[str, Settings], Channel] = {}
        self.users: dict[Channel, int] = {}
        self.hooked = False


_channels = _Channels()


def acquire(bootstrap: str, settings: Settings) -> Channel:
    """The process's channel for these brokers and settings, opened if need be; `release` it later."""
    with _channels.lock:
        if not _channels.hooked:
            _channels.hooked = True
            os.register_at_fork(after_in_child=_forget)
            atexit.register(_stop_all)
        channel = _channels.shared.get((bootstrap, settings))
        if channel is None:
            channel = _channels.shared[bootstrap, settings] = Channel(bootstrap, settings)
        _channels.users[channel] = _channels.users.get(channel, 0) + 1
        return channel


def release(channel: Channel) -> None:
    """Give a channel back; the last one to do so stops it. Blocks up to a few seconds then."""
    with _channels.lock:
        left = _channels.users[channel] = _channels.users[channel] - 1
        if left:
            return
        del _channels.users[channel]
        del _channels.shared[channel.bootstrap, channel.settings]
    channel.stop()


def _forget() -> None:
    """In a forked child: the parent's threads are not here, so its channels are of no use and must not be freed."""
    global _channels  # noqa: PLW0603 - the lock may be held by a thread that does not exist here
    for channel in _channels.users:
        channel.abandon()
    _channels = _Channels()
    _channels.hooked = True


def _stop_all() -> None:
    """At exit: wait for what was published, within the bound, so that the last records are not lost."""
    for channel in list(_channels.users):
        channel.drain(None, channel.settings.close_timeout_s)
        channel.stop()
