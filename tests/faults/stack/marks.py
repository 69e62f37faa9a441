"""Coverage marks: what a run has reached. A fault run that did not reach what it is there for has shown nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from faults.stack.evidence import Evidence

from fencepost.ledger.operations import Operation


def reached(evidence: Evidence, operations: Mapping[str, Operation]) -> Counter[str]:
    """How often each of the things happened that a fault run is there for."""
    marks: Counter[str] = Counter()
    for operation in operations.values():
        marks[f"operation {operation.status.value}"] += 1
        for attempt in operation.attempts.values():
            marks[f"attempt {attempt.state.value}"] += 1
    for call in evidence.calls:
        marks[f"call {call.outcome}"] += 1
        if call.error:
            marks[f"error {call.error.split(':')[0]}"] += 1
        if call.outcome == "ok" and not call.ran and call.op_id:
            marks["absorbed"] += 1
    for decided in evidence.decisions:
        marks[f"verdict {decided.verdict}"] += 1
    marks["hits"] = sum(hit.do == "hit" for hit in evidence.sink)
    marks["voided"] = sum(hit.do == "void" for hit in evidence.sink)
    marks["records"] = sum(len(records) for records in evidence.tap.values())
    marks["removed by compaction"] = marks["records"] - sum(len(records) for records in evidence.log.values())
    return marks
