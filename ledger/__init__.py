"""Fencepost's ledger: which effects happened, on which side of a checkpoint each one stands.

    from fencepost.ledger import EffectClass, Ledger

Everything public is named in `__all__`; names are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .approvals import Approval
    from .attempt_faces import AsyncAttempt, Attempt
    from .compensation_reports import CompensationReport, Undone
    from .contexts import Checkpoint, Compaction
    from .divergence import HeldAttempt
    from .errors import (
        AlreadyExistsError,
        CompactionRefusedError,
        CompensationBlockedError,
        ConflictError,
        DivergenceHeldError,
        FencedError,
        FencepostError,
        GenerationConflictError,
        GuaranteeError,
        InvalidArgumentError,
        LogGapError,
        LossNotAcceptedError,
        ManifestError,
        NotFoundError,
        OperationBeingUndoneError,
        OperationConflictError,
        OperationInDoubtError,
        OperationInFlightError,
        OutcomeUnknownError,
        PublishRefusedError,
        RecordTooLargeError,
        RefusedError,
        ResultNotRecordedError,
        RollbackPendingError,
        SpeculativeRollbackViolation,
        StaleProjectionError,
        StoreClosedError,
        StoreError,
        StoreUnavailableError,
        SummaryReconciliationError,
        TooManyAttemptsError,
        UndecidedError,
        UnsafeRollbackError,
        UsageError,
        VersionMovedError,
        WatermarkMangledError,
    )
    from .facade import AsyncLedger, Ledger
    from .facts import Dropped, EffectClass, Outcome
    from .limits import Limits
    from .manifests import CompensatingAction, Manifest, ManifestVerdict
    from .operations import Operation
    from .planning import PlanProgress, StandingEffect, StepProgress
    from .plans import Plan, Step
    from .prune_verdicts import BranchEffect, ObligationKind, OpenObligation, PruneKind, PruneVerdict
    from .quarantine import QuarantinedDetails, QuarantinedRecord, Standing
    from .replay import ReplayedOperation
    from .resolutions import OpenOperation, ProbeAnswer
    from .resume_answers import Reconcile, ReportedCall, Resume
    from .service import AgentWatermark
    from .session_faces import AgentSession, AsyncAgentSession
    from .speculation import SpeculationReport, SpeculationRow
    from .tool_words import EffectNotExecuted, KeyVoided, StateMoved
    from .undo import Undo, UndoPath
    from .undone import UndoneEffect
    from .verdicts import Blocker, Policy, Reason, ReasonKind, Verdict, VerdictKind, WayOn
    from .watermarks import Watermark

_HOMES = {
    "attempt_faces": ["AsyncAttempt", "Attempt"],
    "limits": ["Limits"],
    "errors": [
        "OperationBeingUndoneError", "ManifestError", "LossNotAcceptedError", "CompensationBlockedError", "AlreadyExistsError", "ConflictError", "DivergenceHeldError", "FencedError", "FencepostError",
        "GuaranteeError", "InvalidArgumentError", "LogGapError", "NotFoundError",
        "OperationConflictError", "OperationInDoubtError", "OperationInFlightError",
        "OutcomeUnknownError", "PublishRefusedError", "RecordTooLargeError", "RefusedError",
        "ResultNotRecordedError", "RollbackPendingError", "SpeculativeRollbackViolation", "StaleProjectionError", "StoreClosedError", "StoreError",
        "StoreUnavailableError", "TooManyAttemptsError", "UndecidedError", "UnsafeRollbackError",
        "UsageError", "VersionMovedError", "WatermarkMangledError", "CompactionRefusedError", "GenerationConflictError",
        "SummaryReconciliationError",
    ],
    "divergence": ["HeldAttempt"],
    "facade": ["AsyncLedger", "Ledger"],
    "contexts": ["Checkpoint", "Compaction"],
    "facts": ["Dropped", "EffectClass", "Outcome"],
    "resume_answers": ["Reconcile", "ReportedCall", "Resume"],
    "verdicts": ["Blocker", "Policy", "Reason", "ReasonKind", "Verdict", "VerdictKind", "WayOn"],
    "operations": ["Operation"],
    "prune_verdicts": ["BranchEffect", "ObligationKind", "OpenObligation", "PruneKind", "PruneVerdict"],
    "quarantine": ["QuarantinedDetails", "QuarantinedRecord", "Standing"],
    "replay": ["ReplayedOperation"],
    "resolutions": ["OpenOperation", "ProbeAnswer"],
    "service": ["AgentWatermark"],
    "session_faces": ["AgentSession", "AsyncAgentSession"],
    "speculation": ["SpeculationReport", "SpeculationRow"],
    "approvals": ["Approval"],
    "compensation_reports": ["CompensationReport", "Undone"],
    "manifests": ["CompensatingAction", "Manifest", "ManifestVerdict"],
    "planning": ["PlanProgress", "StandingEffect", "StepProgress"],
    "plans": ["Plan", "Step"],
    "tool_words": ["EffectNotExecuted", "KeyVoided", "StateMoved"],
    "undo": ["Undo", "UndoPath"],
    "undone": ["UndoneEffect"],
    "watermarks": ["Watermark"],
}  # fmt: skip
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "AgentSession", "AgentWatermark", "AlreadyExistsError", "Approval", "AsyncAgentSession", "AsyncAttempt",
    "AsyncLedger", "Attempt", "Blocker", "BranchEffect", "Checkpoint", "Compaction", "CompactionRefusedError",
    "CompensatingAction", "CompensationBlockedError", "CompensationReport", "ConflictError",
    "DivergenceHeldError", "Dropped", "EffectClass", "EffectNotExecuted", "FencedError", "FencepostError",
    "GenerationConflictError", "GuaranteeError", "HeldAttempt", "InvalidArgumentError", "KeyVoided", "Ledger", "Limits", "LogGapError",
    "LossNotAcceptedError", "Manifest", "ManifestError", "ManifestVerdict", "NotFoundError", "ObligationKind",
    "OpenObligation", "OpenOperation", "Operation", "OperationBeingUndoneError", "OperationConflictError",
    "OperationInDoubtError", "OperationInFlightError", "Outcome", "OutcomeUnknownError", "Plan", "PlanProgress",
    "Policy", "ProbeAnswer", "PruneKind", "PruneVerdict", "PublishRefusedError", "QuarantinedDetails", "QuarantinedRecord", "Reason", "ReasonKind",
    "Reconcile", "RecordTooLargeError", "RefusedError", "ReplayedOperation", "ReportedCall", "ResultNotRecordedError", "Resume",
    "RollbackPendingError", "SpeculationReport", "SpeculationRow", "SpeculativeRollbackViolation",
    "StaleProjectionError", "Standing", "StandingEffect", "StateMoved", "Step", "StepProgress", "StoreClosedError",
    "StoreError", "StoreUnavailableError", "SummaryReconciliationError", "TooManyAttemptsError",
    "UndecidedError", "Undo", "UndoPath", "Undone", "UndoneEffect", "UnsafeRollbackError", "UsageError",
    "Verdict", "VerdictKind", "VersionMovedError", "Watermark", "WatermarkMangledError", "WayOn",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
