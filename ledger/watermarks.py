"""Watermarks: the point up to which a checkpoint knows what happened, and its token.

The token is made to be embedded verbatim in a summary:

    [[fencepost:w1:LEDGER:AGENT:BRANCH:EPOCH:SEQ:CHECKSUM]]

Agent and branch are percent-quoted; the checksum covers everything before it, so that a
token which a summary shortened, reworded, or re-spelled is told from one that is missing.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from .errors import WatermarkMangledError
from .positions import Position

_PREFIX = "fencepost:w1:"
_TOKEN = re.compile(r"\[\[fencepost:w1:([^\s:\[\]]+):([^\s:\[\]]+):([^\s:\[\]]+):(\d+\.\d+):(\d+):([0-9a-f]{10})\]\]")
_TRACE = re.compile(
    r"fence\s?post\s?:\s?w\d|\[\[\s*fence"  # how a token begins
    r"|\d\.\d+:\d+:[0-9a-f]{10}(?![0-9a-f])",  # and how it ends: where only its beginning was damaged or cut off
    re.IGNORECASE,
)


class Point(NamedTuple):
    """A place in an agent's life: a session's epoch and a sequence number (inclusive)."""

    epoch: Position
    seq: int


@dataclass(frozen=True, slots=True)
class Watermark:
    """(ledger id, agent, branch, epoch, seq). `seq` is inclusive; 0 knows nothing of the session."""

    ledger_id: str
    agent_id: str
    branch_id: str
    epoch: Position
    seq: int

    @property
    def point(self) -> Point:
        """Where in the agent's life this watermark stands."""
        return Point(self.epoch, self.seq)

    @property
    def token(self) -> str:
        """The printable form, for embedding in text."""
        body = self._body()
        return f"[[{body}:{_checksum(body)}]]"

    def _body(self) -> str:
        agent, branch = (quote(part, safe="") for part in (self.agent_id, self.branch_id))
        return f"{_PREFIX}{self.ledger_id}:{agent}:{branch}:{self.epoch}:{self.seq}"

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "ledger_id": self.ledger_id,
            "agent_id": self.agent_id,
            "branch_id": self.branch_id,
            "epoch": str(self.epoch),
            "seq": self.seq,
            "token": self.token,
        }

    @classmethod
    def parse(cls, token: str) -> Watermark:
        """The watermark of a token. Raises WatermarkMangledError for anything else."""
        found = cls.find(token)
        if found is None:
            raise WatermarkMangledError(
                f"watermark: {token!r} holds no token.",
                next_step="Pass the token that `checkpoint()` returned, unchanged.",
                field="watermark",
            )
        return found

    @classmethod
    def find(cls, text: str) -> Watermark | None:
        """The newest token in a text, however deeply the text was summarised; None if absent.

        Raises:
            WatermarkMangledError: there are traces of a token, but no intact one. Absent
                and mangled are different answers: a mangled token means that a summary
                has damaged what it had to keep.
        """
        intact = [mark for match in _TOKEN.finditer(text) if (mark := cls._checked(match))]
        if intact:
            return max(intact, key=lambda mark: mark.point)
        if _TRACE.search(text):
            raise WatermarkMangledError(
                "watermark: the text holds a damaged token; its checksum or form is wrong.",
                next_step="Restore from a checkpoint whose token is intact, or let an operator reconcile.",
                field="watermark",
            )
        return None

    @classmethod
    def _checked(cls, match: re.Match[str]) -> Watermark | None:
        ledger_id, agent, branch, epoch, seq, checksum = match.groups()
        mark = cls(ledger_id, unquote(agent), unquote(branch), Position.parse(epoch), int(seq))
        return mark if _checksum(mark._body()) == checksum else None


def _checksum(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:10]


def low_water(seen: set[int], voided: frozenset[int] | set[int] = frozenset()) -> int:
    """The highest n such that 1..n are all accounted for."""
    number = 0
    while number + 1 in seen or number + 1 in voided:
        number += 1
    return number
