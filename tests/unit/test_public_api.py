"""What is public: every name, where it is documented, and how errors behave. A change here is a change for users."""

from __future__ import annotations

import inspect
import pickle

import pytest

import fencepost.ledger
from fencepost.ledger import FencepostError, errors

PUBLIC = [
    "AgentSession",
    "AgentWatermark",
    "AlreadyExistsError",
    "Approval",
    "AsyncAgentSession",
    "AsyncAttempt",
    "AsyncLedger",
    "Attempt",
    "Blocker",
    "BranchEffect",
    "Checkpoint",
    "Compaction",
    "CompactionRefusedError",
    "CompensatingAction",
    "CompensationBlockedError",
    "CompensationReport",
    "ConflictError",
    "DivergenceHeldError",
    "Dropped",
    "EffectClass",
    "EffectNotExecuted",
    "FencedError",
    "FencepostError",
    "GenerationConflictError",
    "GuaranteeError",
    "HeldAttempt",
    "InvalidArgumentError",
    "KeyVoided",
    "Ledger",
    "Limits",
    "LogGapError",
    "LossNotAcceptedError",
    "Manifest",
    "ManifestError",
    "ManifestVerdict",
    "NotFoundError",
    "ObligationKind",
    "OpenObligation",
    "OpenOperation",
    "Operation",
    "OperationBeingUndoneError",
    "OperationConflictError",
    "OperationInDoubtError",
    "OperationInFlightError",
    "Outcome",
    "OutcomeUnknownError",
    "Plan",
    "PlanProgress",
    "Policy",
    "ProbeAnswer",
    "PruneKind",
    "PruneVerdict",
    "PublishRefusedError",
    "QuarantinedDetails",
    "QuarantinedRecord",
    "Reason",
    "ReasonKind",
    "Reconcile",
    "RecordTooLargeError",
    "RefusedError",
    "ReplayedOperation",
    "ReportedCall",
    "ResultNotRecordedError",
    "Resume",
    "RollbackPendingError",
    "SpeculationReport",
    "SpeculationRow",
    "SpeculativeRollbackViolation",
    "StaleProjectionError",
    "Standing",
    "StandingEffect",
    "StateMoved",
    "Step",
    "StepProgress",
    "StoreClosedError",
    "StoreError",
    "StoreUnavailableError",
    "SummaryReconciliationError",
    "TooManyAttemptsError",
    "UndecidedError",
    "Undo",
    "UndoPath",
    "Undone",
    "UndoneEffect",
    "UnsafeRollbackError",
    "UsageError",
    "Verdict",
    "VerdictKind",
    "VersionMovedError",
    "Watermark",
    "WatermarkMangledError",
    "WayOn",
]
RETRYABLE = {"StaleProjectionError", "StoreUnavailableError"}
EXIT_CODES = {
    "UsageError": 2,
    "RefusedError": 3,
    "UnsafeRollbackError": 3,
    "WatermarkMangledError": 3,
    "UndecidedError": 4,
    "ResultNotRecordedError": 4,
    "NotFoundError": 5,
    "ConflictError": 6,
    "StoreClosedError": 7,
    "StoreError": 7,
}
ERRORS = sorted(
    (e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, FencepostError)),
    key=lambda e: e.__name__,
)


def test_public_names() -> None:
    """These names are public, and no others; they are what `dir` shows."""
    assert sorted(fencepost.ledger.__all__) == PUBLIC
    assert dir(fencepost.ledger) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_is_there_and_documented(name: str) -> None:
    """Every public name can be imported and says what it is, and so does every public method of it."""
    found = getattr(fencepost.ledger, name)
    assert inspect.getdoc(found)
    if inspect.isclass(found):
        for member, value in vars(found).items():
            if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property | classmethod)):
                assert inspect.getdoc(value), f"{name}.{member}"


def test_unknown_names_are_attribute_errors() -> None:
    """A name that does not exist fails like any attribute; star imports give what is public."""
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = fencepost.ledger.Nonsense
    space: dict[str, object] = {}
    exec("from fencepost.ledger import *", space)  # noqa: S102 (a star import needs a module of its own)
    assert set(PUBLIC) <= set(space)


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_errors(kind: type[FencepostError]) -> None:
    """Every error keeps its message, next step and fields through a pickle, and says whether trying again is safe."""
    error = kind("what happened.", next_step="Do this.", op_id="o", number=7, kinds=("a", "b"))
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 (our own)
    assert type(copy) is kind
    assert str(copy) == str(error) == "what happened. Do this."
    assert (copy.op_id, copy.number) == ("o", 7)
    told = error.to_dict()
    assert told == copy.to_dict()
    assert (told["schema"], told["error"], told["next_step"]) == ("fencepost.error.v1", kind.__name__, "Do this.")
    assert told["details"] == {"op_id": "o", "number": 7, "kinds": ["a", "b"]}
    assert told["retryable"] is kind.retryable is (kind.__name__ in RETRYABLE)
    with pytest.raises(AttributeError):
        _ = error.never_given


def test_exit_codes() -> None:
    """Each family of errors has its exit code; a refusal never looks like a fault, nor a fault like a refusal."""
    for name, code in EXIT_CODES.items():
        assert getattr(errors, name).exit_code == code
    for kind in ERRORS:
        assert 1 <= kind.exit_code <= 7


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    """Every error class stands in the tree that opens the module."""
    assert errors.__doc__ is not None
    for kind in ERRORS:
        assert kind.__name__ in errors.__doc__
