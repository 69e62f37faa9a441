"""Dry runs of the guard, each remembered until a partition that it was read from has moved.

An agent's harness asks before each step that it might have to take back, as a rule without anything having happened
since. Then the headers alone are read, with every check of them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from .basis import Basis
from .errors import FencepostError
from .ports import AtOnce, Header
from .positions import Partition
from .recent import Recent
from .verdicts import Policy, Verdict
from .view import View, age_s

_REMEMBERED = 32
_LONGEST_CHARS = 16_384
"""Of a restored state in a question that is remembered."""
_MOST_EFFECTS = 500
"""In a verdict that is remembered."""


class Asked(NamedTuple):
    """What a dry run is asked about."""

    agent_id: str
    checkpoint_id: str
    policy: Policy
    branch_id: str
    restored: str


class _Known(NamedTuple):
    verdict: Verdict
    basis: Basis


@dataclass(frozen=True, slots=True)
class Previews:
    """The verdicts of dry runs that were made last."""

    _known: Recent[Asked, _Known] = field(default_factory=lambda: Recent(_REMEMBERED))

    def remember(self, asked: Asked, verdict: Verdict, read_from: Basis) -> None:
        """A verdict, for as long as what it was read from stays as it is."""
        small = len(asked.restored) <= _LONGEST_CHARS and len(verdict.outlook) + len(verdict.crossed) <= _MOST_EFFECTS
        if small and not read_from.fleeting:
            self._known.put(asked, _Known(verdict, read_from))

    async def again(self, view: View, asked: Asked) -> Verdict | None:
        """The verdict, if nothing that it was read from has moved. Raises StaleProjectionError, StoreUnavailableError."""
        known = self._found(asked)
        if known is None:
            return None
        partitions = list(known.basis.states)
        headers = await asyncio.gather(*map(view.header, partitions))
        return _still(known, view, asked, dict(zip(partitions, headers, strict=True)))

    def again_here(self, view: View, asked: Asked, way: AtOnce) -> Verdict | None:
        """The same in this thread, at once; None as well where it would have to wait, or to complain."""
        known = self._found(asked)
        if known is None:
            return None
        headers: dict[Partition, Header] = {}
        try:
            for partition in known.basis.states:
                since = view.seen(partition)
                snapshot = way.look(partition, ())
                if snapshot is None:
                    return None
                headers[partition] = view.trusted(partition, snapshot.header, since)
        except FencepostError:  # the long way meets it again, and says so
            return None
        return _still(known, view, asked, headers)

    def _found(self, asked: Asked) -> _Known | None:
        try:
            return self._known.get(asked)
        except TypeError:  # something that is no text: whoever looks into it says so
            return None


def _still(known: _Known, view: View, asked: Asked, headers: dict[Partition, Header]) -> Verdict | None:
    if not all(known.basis.holds(partition, header) for partition, header in headers.items()):
        return None
    age = age_s(headers[view.agents_partition(asked.agent_id)])
    return replace(known.verdict, age_s=age, outlook=dict(known.verdict.outlook))
