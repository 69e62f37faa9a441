"""The answers of every command: their schemas, their exit codes, and where there is no ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_kit import CHARGE, DOUBT, Run, answer, run_fixture, template_fixture, url_fixture  # noqa: F401 - found by their names

from fencepost.ledger import Ledger, StoreError

SESSION = {
    "session_id", "branch_id", "epoch", "watermark", "highest_seq", "heard_of", "live", "ended", "ended_at",
    "sealed_seq", "rejected", "resumed_from", "host", "pid", "opened_ms",
}  # fmt: skip
BRANCH = {
    "branch_id", "parent_branch_id", "fork_checkpoint", "segment", "sessions", "session_id", "live", "checkpoints",
    "closed", "pruned",
}  # fmt: skip
CHECKPOINT = {
    "checkpoint_id", "branch_id", "session_id", "token", "epoch", "seq", "owned", "generation", "state_digest",
    "position", "time_ms", "rejected", "latest_of",
}  # fmt: skip
SUMMARY = {
    "op_id", "tool", "effect_class", "status", "round", "version", "agent_id", "branch_id", "attempts", "settled_at",
    "needs_attention",
}  # fmt: skip
OPERATION = SUMMARY | {
    "idempotency_key", "resource", "cascades", "order_safe", "flagged", "problem", "owner_ended", "result",
    "result_form", "result_digest", "result_reference", "anomalies", "resolutions", "facts", "partition",
    "applied_offset", "age_s", "manifest", "manifest_digest", "verdict", "not_undoable", "adopted_by", "undoings",
    "compensations", "losses", "summarised",
}  # fmt: skip
PARTITION = {
    "partition", "incarnation", "generation", "applied_offset", "settled_offset", "horizon", "opened", "trusted",
    "halted", "debts", "age_s",
}  # fmt: skip
LAG = {
    "partition", "log_end_offset", "applied_offset", "settled_offset", "lag", "opened", "halted", "age_s",
}  # fmt: skip
VERDICT = {
    "verdict", "authorised", "agent_id", "branch_id", "checkpoint_id", "policy", "reasons", "crossed", "ways_on",
    "rollback_id", "fenced", "dry_run", "age_s", "outlook", "by", "evidence", "plan",
}  # fmt: skip

Golden = tuple[str, int, str, set[str], dict[str, set[str]]]
"""Command line, exit code, schema, keys of the object, list in it → keys of the list's objects."""

GOLDEN: list[Golden] = [
    ("init", 0, "init", {"ledger_id", "url"}, {}),
    ("doctor", 0, "doctor", {"url", "ok", "checks"}, {"checks": {"name", "state", "found", "wanted"}}),
    ("status", 0, "status", {"url", "ledger_id", "partitions", "counts", "problems"}, {"partitions": PARTITION}),
    ("agents list", 0, "agents", {"agents"}, {"agents": {
        "agent_id", "branches", "sessions", "live_sessions", "checkpoints", "open_operations", "pending_rollback",
        "unsafe", "age_s"}}),
    ("agents show nightly", 0, "agent", {
        "agent_id", "unsafe", "pending_rollback", "sessions", "branches", "rollbacks", "open_operations", "age_s",
        "declarations", "obligations", "reported_calls", "approvals",
    }, {"sessions": SESSION, "branches": BRANCH}),
    ("ops list", 0, "operations", {"operations", "next_after"}, {"operations": SUMMARY}),
    (f"ops show {CHARGE}", 0, "operation", OPERATION, {"attempts": {
        "attempt_id", "position", "state", "owner", "agent_id", "branch_id", "session_id", "epoch", "seq", "round",
        "time_ms", "outcome", "outcome_position", "error"}}),
    ("checkpoints list nightly", 0, "checkpoints", {"agent_id", "checkpoints"}, {"checkpoints": CHECKPOINT}),
    ("checkpoints show nightly c1", 0, "checkpoint", CHECKPOINT | {"agent_id"}, {}),
    ("branch list nightly", 0, "branches", {"agent_id", "branches", "obligations"}, {
        "branches": BRANCH | {"obligations"}}),
    ("branch fork nightly plan-c --checkpoint c1", 0, "branch", BRANCH | {"agent_id"}, {}),
    ("branch prune nightly plan-b", 0, "prune", {
        "verdict", "restored", "agent_id", "branch_id", "checkpoint_id", "prune_id", "free", "adopted", "compensated",
        "undoable", "orphans", "undecided", "violations", "to_compensate", "completed", "siblings",
        "dry_run", "age_s"}, {}),
    ("branch obligations nightly", 0, "obligations", {"agent_id", "obligations"}, {}),
    ("branch report nightly", 0, "speculation", {"agent_id", "rows", "total"}, {"rows": {
        "fan_out", "forks", "pruned", "prune_rate", "committed", "adopted", "compensated", "to_compensate", "orphans",
        "violations", "undecided"}}),
    ("rollback held nightly", 0, "held", {"agent_id", "held"}, {}),
    ("rollback preview nightly --checkpoint c1", 3, "verdict", VERDICT, {"reasons": {"kind", "text", "effect"}}),
    ("rollback authorize nightly --checkpoint c1", 3, "verdict", VERDICT, {"reasons": {"kind", "text", "effect"}}),
    ("in-doubt list", 0, "in_doubt", {"operations"}, {"operations": {
        "op_id", "tool", "effect_class", "state", "version", "round", "agent_id", "branch_id", "since_ms",
        "idempotency_key", "anomalies", "problem", "age_s"}}),
    (f"in-doubt show {DOUBT}", 0, "in_doubt_operation", {"state", "ways_on", "operation"}, {}),
    ("replay nightly --since c1", 0, "replay", {"agent_id", "since", "operations"}, {"operations": {
        "op_id", "tool", "effect_class", "status", "round", "branch_id", "epoch", "seq", "result", "result_form",
        "own"}}),
    ("projector lag", 0, "lag", {"partitions"}, {"partitions": LAG}),
    ("projector rebuild", 0, "rebuild", {"partitions"}, {"partitions": PARTITION}),
    ("projector verify", 0, "verify", {"ok", "counts", "findings", "more", "applied"}, {}),
    ("projector quarantine list", 0, "quarantine", {"records", "released"}, {}),
    ("export ledger.ndjson", 0, "export_summary", {"file", "keys"}, {}),
]  # fmt: skip


@pytest.mark.parametrize("golden", GOLDEN, ids=[g[0] for g in GOLDEN])
def test_json_schemas(run: Run, golden: Golden) -> None:
    """With --json each command gives one object of its schema, with exactly these keys; nothing else is on stdout."""
    line, code, schema, keys, lists = golden
    values = answer(run("--json", "--quiet", *line.split()), code)
    assert values.pop("schema") == f"fencepost.{schema}.v1"
    assert set(values) == keys
    for name, expected in lists.items():
        assert values[name], f"{name} is empty: nothing is tested"
        assert {frozenset(item) for item in values[name]} == {frozenset(expected)}


@pytest.mark.parametrize(("line", "code"), [(g[0], g[1]) for g in GOLDEN], ids=[g[0] for g in GOLDEN])
def test_text(run: Run, line: str, code: int) -> None:
    """Without --json each command gives text for people, without colours, and with the same exit code."""
    result = run(*line.split())
    assert result.exit_code == code, result.stderr
    assert result.stdout.strip()
    assert "\x1b" not in result.stdout
    assert not result.stdout.startswith("{")


NEED_A_LEDGER = [line for line, *_ in GOLDEN if line != "init"] + [
    "ops tail",
    f"in-doubt probe {DOUBT} --module x:y",
    f"in-doubt resolve {DOUBT} --committed --version 0.1 --evidence e --by b",
    "export",
]


@pytest.mark.parametrize("line", NEED_A_LEDGER)
@pytest.mark.parametrize("exists", [False, True], ids=["missing", "empty file"])
def test_nothing_but_init_and_import_creates_a_ledger(run: Run, tmp_path: Path, line: str, *, exists: bool) -> None:
    """Where there is no ledger the command says so (7) and leaves everything as it is."""
    path = tmp_path / "none" / "ledger.db"
    path.parent.mkdir()
    if exists:
        path.touch()
    result = run("--url", f"sqlite://{path}", *line.split())
    assert result.exit_code == 7
    assert f"no ledger at {path}" in result.stderr
    assert "fencepost init" in result.stderr
    assert [(p.name, p.stat().st_size) for p in path.parent.iterdir()] == ([("ledger.db", 0)] if exists else [])


@pytest.mark.parametrize("line", ["status", "ops list", "init", "doctor"])
def test_a_folder_that_may_not_be_entered(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    """Nobody can say that there is no ledger: the command says what keeps it from looking (7), and creates nothing."""
    path = tmp_path / "private" / "ledger.db"
    path.parent.mkdir()
    stat = Path.stat

    def forbidden(self: Path, **more: Any) -> Any:
        if self == path:
            raise PermissionError(13, "Permission denied", str(path))
        return stat(self, **more)

    monkeypatch.setattr(Path, "stat", forbidden)
    result = run("--url", f"sqlite://{path}", *line.split())
    assert result.exit_code == 7, result.stderr
    assert "may not enter its folder" in result.stderr
    with pytest.raises(StoreError, match="may not enter"):
        Ledger.open(f"sqlite://{path}")
    assert list(path.parent.iterdir()) == []
