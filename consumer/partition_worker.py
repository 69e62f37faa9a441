"""One assigned partition of the projector, from its claim to its loss.

CLAIMING ──► FOLDING     trouble of any kind leads back to CLAIMING, which believes only what Redis says
│    └──► MARKING ─┘    MARKING: there is no projection; its horizon is being written to the log
└───────► HALTED        HALTED: records are missing; an operator must drop the projection
"""

from __future__ import annotations

import logging
import secrets
import time
from contextlib import contextmanager
from enum import Enum, auto
from typing import TYPE_CHECKING

from ..ledger.errors import LogGapError, StoreUnavailableError
from ..ledger.ports import Header
from ..ledger.projection import DEBTS, Debt, PartitionFold
from ..schemas import RegistryUnavailableError, SchemaError
from . import failpoints, horizon
from .debts import DebtPayer
from .entries import entry_from_message
from .folding import Folding, GapError, ReadEntry
from .kafka_client import Settled
from .partition_store import MovedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..ledger.history import LogEntry
    from .entries import RawMessage
    from .kafka_log import PartitionLog
    from .partition_store import PartitionStore

_log = logging.getLogger("fencepost.projector")
_BACKOFF_S = (0.1, 0.25, 0.5, 1.0, 2.0)
_SUPERSEDED_S = 15.0  # longer than the group takes to find out that a member is gone
_LOOK_S = 0.7
_BATCH_RECORDS = 1000
_BATCH_BYTES = 4 << 20


class Phase(Enum):
    """What a worker is doing."""

    CLAIMING = auto()
    MARKING = auto()
    FOLDING = auto()
    HALTED = auto()


class PartitionWorker:
    """Projects one partition. One thread calls it; trouble that can be expected never gets out.

    Args:
        log: the partition in Kafka.
        store: its projection in Redis.
        clock: monotonic seconds.
    """

    def __init__(self, log: PartitionLog, store: PartitionStore, clock: Callable[[], float] = time.monotonic) -> None:
        self.partition = log.partition
        self.phase = Phase.CLAIMING
        self._log = log
        self._store = store
        self._clock = clock
        self._payer = DebtPayer(log, store, clock)
        self._folding: Folding | None = None
        self._marker = horizon.Delivery()
        self._failures = 0
        self._not_before = 0.0
        self._looked_at = 0.0
        self._saved: Settled | None = None  # what the group keeps; asked for once
        self._asked = False
        self._floor = 0  # the largest settled offset that is known of this topic
        self._accepted = 0
        self._former = ""  # what became of the former projection; "" when there was none
        self._suspect: tuple[int, int] | None = None

    # -- what the projector calls --------------------------------------------------------

    def serve(self, *, alive: bool) -> None:
        """Do what is due without new entries: claim, pay debts, look whether all is as it was.

        Args:
            alive: whether the log answered lately, so that "nothing new" means something.
        """
        with self._trouble():
            if self.phase is Phase.CLAIMING and self._clock() >= self._not_before:
                self._claim()
            elif self.phase is Phase.MARKING:
                self._look_at_marker()
            elif self.phase is Phase.FOLDING and self._folding is not None:
                self._folding.open_if_due()
                self._payer.pay(self._folding.fold, self._clock())
            self._look(alive=alive)

    def take(self, messages: Sequence[tuple[RawMessage, int]]) -> None:
        """Apply the next messages, each with the leader epoch that it was written in."""
        with self._trouble():
            for batch in _batches(messages):
                if self.phase is not Phase.FOLDING or self._folding is None:
                    return  # it starts again from the position in Redis
                entries = [ReadEntry(self._entry(raw), epoch) for raw, epoch in batch]
                try:
                    self._folding.take(entries)
                except GapError as gap:
                    self._gap(self._folding, gap)
                self._failures = 0
                self._looked_at = self._clock()

    def out_of_range(self) -> None:
        """The log has nothing at the position: it was cut at the front, or it is not the log that was read."""
        with self._trouble():
            if self.phase is not Phase.FOLDING or self._folding is None:
                return
            folding, applied = self._folding, self._folding.header.applied_offset
            first, end = self._log.bounds()
            if applied > end:
                self._halt(f"the log ends at {end}, before the applied offset {applied}: it was cut or made anew")
            elif first <= applied:
                self._retreat(self._backoff())
            elif not folding.header.opened and first <= folding.gaps_below:
                folding.skip_to(first)
                self._log.start(first, -1)
            else:
                self._gap(folding, GapError(applied, first))

    def cut(self) -> None:
        """The log was truncated below what was read: acknowledged records are lost."""
        with self._trouble():
            if self.phase is Phase.FOLDING:
                self._halt("the log was truncated behind the applied offset: an unclean election lost records")

    def unsaved(self) -> Settled | None:
        """The settled offset, when it is beyond the one that the group keeps; only what Redis has."""
        header = self._folding.header if self._folding else None
        if header is None or not self._asked or header.settled_offset <= (self._saved.offset if self._saved else 0):
            return None
        return Settled(header.settled_offset, int(time.time() * 1000), header.incarnation, self._log.topic_id)

    def saved(self, settled: Settled | None) -> None:
        """The group keeps this one now; None when it could not be told to."""
        self._saved = settled

    # -- phases --------------------------------------------------------------------------

    def _claim(self) -> None:
        if not self._asked:
            self._saved = self._log.settled()
            self._asked = True
        claimed = self._store.claim()
        header = claimed.header
        saved = self._saved.offset if self._saved else 0
        self._floor = max(self._floor, saved, header.settled_offset)
        self._accepted = claimed.accepted
        if not header.incarnation:
            self._former = header.halted or self._former or ("it is gone" if self._saved else "")
            self._mark()
        elif header.halted:
            _log.error("%s is halted: %s", self.partition, header.halted)
            self.phase = Phase.HALTED
        else:
            debts = {d.key: Debt.read(v) for page in self._store.collection(DEBTS) for d, v in page.items()}
            self._start(header, debts, claimed.leader_epoch)

    def _start(self, header: Header, debts: dict[str, Debt], leader_epoch: int, *, begun: bool = False) -> None:
        fold = PartitionFold(self.partition, header, debts)
        below = max(self._floor, self._accepted)
        self._folding = Folding(fold, self._store, leader_epoch=leader_epoch, gaps_below=below, begun=begun)
        self._log.start(header.applied_offset, leader_epoch)
        self.phase = Phase.FOLDING
        self._former = "it is gone"  # said when a new one is begun
        _log.info("%s: applying from offset %d (opened: %s)", self.partition, header.applied_offset, header.opened)

    def _mark(self) -> None:
        failpoints.hit("before_horizon")
        self._marker = horizon.Delivery()
        self.phase = Phase.MARKING
        self._log.publish(horizon.marker(self.partition, self._log.partition_of), self._marker.report)

    def _look_at_marker(self) -> None:
        marker = self._marker
        if not marker.reported:
            return
        if marker.error:
            what = f"The horizon of {self.partition} cannot be written: {marker.error}."
            raise StoreUnavailableError(what, next_step="Check that Kafka takes records; nothing is lost.")
        if marker.offset is None:
            self._mark()  # it is written, but the report left out where
            return
        header = Header(
            incarnation=secrets.token_hex(8),
            generation=self._log.generation,
            settled_offset=self._floor,
            judge_from=self._floor,
            horizon=marker.offset + 1,
        )
        self._store.begin(header)
        failpoints.hit("after_begin_incarnation")
        level, former = (logging.WARNING, f" (the former: {self._former})") if self._former else (logging.INFO, "")
        _log.log(level, "%s: begins a new projection%s; it opens at offset %d", self.partition, former, header.horizon)
        self._start(header, {}, -1, begun=True)

    def _look(self, *, alive: bool) -> None:
        if self.phase not in {Phase.FOLDING, Phase.HALTED} or self._clock() - self._looked_at < _LOOK_S:
            return
        applied = self._folding.header.applied_offset if self._folding else -1
        self._store.heartbeat(touch=alive and applied >= self._log.known_end() >= 0)
        self._looked_at = self._clock()

    # -- trouble -------------------------------------------------------------------------

    @contextmanager
    def _trouble(self) -> Iterator[None]:
        try:
            yield
        except MovedError as moved:
            _log.warning("%s: the projection moved (%s); loading it again", self.partition, moved)
            self._retreat(_SUPERSEDED_S if moved.superseded else 0.0)
        except (StoreUnavailableError, RegistryUnavailableError) as error:
            pause = self._backoff()
            _log.warning("%s: %s Trying again in %.2f s", self.partition, error, pause)
            self._retreat(pause)
        except SchemaError as error:
            self._unfoldable(error)
        except Exception:  # noqa: BLE001 (the outermost one of a partition)
            # One partition's trouble must not stop the others; and what nobody foresaw may pass.
            pause = self._backoff()
            _log.exception("%s: unforeseen; trying again in %.2f s", self.partition, pause)
            self._retreat(pause)

    def _unfoldable(self, error: SchemaError) -> None:
        applied = self._folding.header.applied_offset if self._folding else -1
        with self._trouble():
            self._halt(f"a record at or after offset {applied} cannot be projected: {error}")

    def _retreat(self, pause_s: float) -> None:
        self._folding = None
        self._payer.reset()
        self.phase = Phase.CLAIMING
        self._not_before = self._clock() + pause_s
        try:
            self._log.stop()
        except StoreUnavailableError as error:
            _log.warning("%s: %s", self.partition, error)

    def _backoff(self) -> float:
        pause = _BACKOFF_S[min(self._failures, len(_BACKOFF_S) - 1)]
        self._failures += 1
        return pause

    def _gap(self, folding: Folding, gap: GapError) -> None:
        """What is missing below the settled offset is legally compacted; anything else proves a loss."""
        if gap.found <= max(folding.gaps_below, folding.header.settled_offset):
            _log.warning("%s: the projection went back behind what is compacted (%s)", self.partition, gap)
            self._store.drop()
            self._retreat(0.0)
        elif self._suspect != (gap.expected, gap.found):
            self._suspect = (gap.expected, gap.found)  # read it again before stopping everything for it
            self._asked = False
            self._retreat(0.0)
        else:
            self._suspect = None
            error = LogGapError(
                f"The records {gap.expected} to {gap.found - 1} of {self.partition} are gone from the log, and nobody "
                f"had applied them (settled offset {folding.header.settled_offset}).",
                next_step="Find out what they said; then: fencepost projector rebuild --accept-gap",
                partition=str(self.partition),
                expected=gap.expected,
                found=gap.found,
            )
            self._halt(str(error))

    def _halt(self, reason: str) -> None:
        self._store.heartbeat(touch=False, halted=reason)
        _log.error("%s is halted: %s", self.partition, reason)
        self._folding = None
        self._payer.reset()
        self.phase = Phase.HALTED
        self._log.stop()

    def _entry(self, raw: RawMessage) -> LogEntry:
        return entry_from_message(raw, self._log.partition_of, self._log.codec)


def _batches(messages: Sequence[tuple[RawMessage, int]]) -> Iterator[list[tuple[RawMessage, int]]]:
    """Runs of messages, bounded in number and bytes."""
    batch: list[tuple[RawMessage, int]] = []
    size = 0
    for message in messages:
        batch.append(message)
        size += len(message[0].value or b"")
        if len(batch) >= _BATCH_RECORDS or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
