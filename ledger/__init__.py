"""Fencepost's ledger: which effects happened, on which side of a checkpoint each one stands.

    from fencepost.ledger import EffectClass, Ledger

Everything public is named in `__all__`; names are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .attempt_faces import AsyncAttempt, Attempt
    from .calls import EffectNotExecuted
    from .engine import Limits
    from .errors import (
        AlreadyExistsError,
        ConflictError,
        DivergenceHeldError,
        FencedError,
        FencepostError,
        GuaranteeError,
        InvalidArgumentError,
        LogGapError,
        NotFoundError,
        OperationConflictError,
        OperationInDoubtError,
        OperationInFlightError,
        OutcomeUnknownError,
        PublishRefusedError,
        RecordTooLargeError,
        RefusedError,
        ResultNotRecordedError,
        RollbackPendingError,
        StaleProjectionError,
        StoreClosedError,
        StoreError,
        StoreUnavailableError,
        TooManyAttemptsError,
        UndecidedError,
        UnsafeRollbackError,
        UsageError,
        VersionMovedError,
        WatermarkMangledError,
    )
    from .facade import AsyncLedger, Ledger
    from .facts import EffectClass, Outcome
    from .guard import Blocker, Policy, Reason, ReasonKind, Verdict, VerdictKind, WayOn
    from .operations import Operation
    from .quarantine import QuarantinedDetails, QuarantinedRecord, Standing
    from .replay import ReplayedOperation
    from .resolutions import OpenOperation, ProbeAnswer
    from .service import AgentWatermark
    from .session_faces import AgentSession, AsyncAgentSession
    from .watermarks import Watermark

_HOMES = {
    "attempt_faces": ["AsyncAttempt", "Attempt"],
    "calls": ["EffectNotExecuted"],
    "engine": ["Limits"],
    "errors": [
        "AlreadyExistsError", "ConflictError", "DivergenceHeldError", "FencedError", "FencepostError",
        "GuaranteeError", "InvalidArgumentError", "LogGapError", "NotFoundError",
        "OperationConflictError", "OperationInDoubtError", "OperationInFlightError",
        "OutcomeUnknownError", "PublishRefusedError", "RecordTooLargeError", "RefusedError",
        "ResultNotRecordedError", "RollbackPendingError", "StaleProjectionError", "StoreClosedError", "StoreError",
        "StoreUnavailableError", "TooManyAttemptsError", "UndecidedError", "UnsafeRollbackError",
        "UsageError", "VersionMovedError", "WatermarkMangledError",
    ],
    "facade": ["AsyncLedger", "Ledger"],
    "facts": ["EffectClass", "Outcome"],
    "guard": ["Blocker", "Policy", "Reason", "ReasonKind", "Verdict", "VerdictKind", "WayOn"],
    "operations": ["Operation"],
    "quarantine": ["QuarantinedDetails", "QuarantinedRecord", "Standing"],
    "replay": ["ReplayedOperation"],
    "resolutions": ["OpenOperation", "ProbeAnswer"],
    "service": ["AgentWatermark"],
    "session_faces": ["AgentSession", "AsyncAgentSession"],
    "watermarks": ["Watermark"],
}  # fmt: skip
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "AgentSession", "AgentWatermark", "AlreadyExistsError", "AsyncAgentSession", "AsyncAttempt",
    "AsyncLedger", "Attempt", "Blocker", "ConflictError", "DivergenceHeldError", "EffectClass",
    "EffectNotExecuted", "FencedError", "FencepostError", "GuaranteeError", "InvalidArgumentError",
    "Ledger", "Limits", "LogGapError", "NotFoundError", "OpenOperation", "Operation",
    "OperationConflictError", "OperationInDoubtError", "OperationInFlightError", "Outcome", "OutcomeUnknownError", "Policy",
    "ProbeAnswer", "PublishRefusedError", "QuarantinedDetails", "QuarantinedRecord", "Reason", "ReasonKind", "RecordTooLargeError", "RefusedError",
    "ReplayedOperation", "ResultNotRecordedError", "RollbackPendingError", "StaleProjectionError", "Standing",
    "StoreClosedError", "StoreError", "StoreUnavailableError", "TooManyAttemptsError", "UndecidedError",
    "UnsafeRollbackError", "UsageError", "Verdict", "VerdictKind", "VersionMovedError", "Watermark",
    "WatermarkMangledError", "WayOn",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
