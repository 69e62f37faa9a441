"""Tables, fields, notes, and JSON, as they are written."""

from __future__ import annotations

import io
import json
import sys
import time

import pytest
from rich.console import Console

from fencepost.ledger import cli_rich
from fencepost.ledger.cli_output import Output, ago, clean, duration, shortened, when


def test_table_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    """Where stdout is no terminal, a table is aligned text without colours and without an end of blanks."""
    Output().table(("NAME", "N"), [("a", 1), ("longer", None)], empty="none")
    assert capsys.readouterr().out == "NAME    N\na       1\nlonger  -\n"


def test_table_of_a_given_width(capsys: pytest.CaptureFixture[str]) -> None:
    """Where a width is given long cells are folded, the widest columns first, and nothing is lost."""
    Output().table(("NAME", "FOUND", "N"), [("a", "x" * 50 + " " + "y" * 30, 1), ("b", "z", 2)], empty="", width=40)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 40
    assert (out.count("x"), out.count("y"), out.count("z")) == (50, 30, 1)
    assert out.splitlines()[-1].split() == ["b", "z", "2"]
    Output().table(("NAME",), [("short",)], empty="", width=40)
    assert capsys.readouterr().out == "NAME\nshort\n"


def test_empty_table(capsys: pytest.CaptureFixture[str]) -> None:
    """A table without rows says so."""
    Output().table(("NAME",), [], empty="No agents.")
    assert capsys.readouterr().out == "No agents.\n"


def test_fields_leave_out_what_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    """Names are aligned; a value of None has no line."""
    Output().fields((("a", 1), ("bcd", True), ("e", None)))
    assert capsys.readouterr().out == "a    1\nbcd  yes\n"


def test_json_is_one_object_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """With --json nothing but the object is on stdout."""
    Output(as_json=True).data({"schema": "x", "a": "é"}, lambda: pytest.fail("not asked for"))
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"schema": "x", "a": "é"}


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "told"), [({1}, "{1}"), (float("nan"), "nan"), (b"x", "b'x'"), ({(1,): 2}, "{(1,): 2}"), (Odd(), "<Odd>")]
)
def test_what_is_not_json_is_told_as_text(value: object, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A value that JSON does not have never spoils an answer."""
    Output(as_json=True).data({"schema": "x", "result": value}, lambda: None)
    Output(as_json=True).line({"result": value}, str)
    first, second = capsys.readouterr().out.splitlines()
    assert json.loads(first) == {"schema": "x", "result": told}
    assert json.loads(second) == {"result": told}
    assert shortened(value) == told


def test_half_a_surrogate_pair(capsys: pytest.CaptureFixture[str]) -> None:
    """Text that no encoding has is written escaped; in JSON it is still the same text."""
    Output().text("a\ud800")
    Output(as_json=True).data({"a": "\ud800"}, lambda: None)
    first, second = capsys.readouterr().out.splitlines()
    assert first == "a\\ud800"
    assert json.loads(second) == {"a": "\ud800"}


def test_notes_are_on_stderr_unless_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    """Notes never mix with data, and --quiet stops them."""
    Output().note("hello")
    Output(quiet=True).note("silence")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "hello\n")


def test_no_progress_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Where stderr is no terminal there is no progress bar."""
    with Output().progress("verify") as bar:
        bar("effects/0", 1, 2)
    assert capsys.readouterr().err == ""


def test_ascii_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a stdout that cannot write all characters JSON stays valid and text is escaped."""
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    out = Output(as_json=True)
    out.data({"a": "é"}, lambda: None)
    out.text("é")
    sys.stdout.flush()
    first, second = raw.getvalue().decode("ascii").splitlines()
    assert json.loads(first) == {"a": "é"}
    assert second == "\\xe9"


def test_cells_cannot_steer_the_terminal() -> None:
    """Control characters are shown escaped; everything that can be printed stays."""
    assert clean("a\x1b[31mb\nc é €") == "a\\x1b[31mb\\nc é €"


def test_times() -> None:
    """Times are told in UTC, ages in one unit."""
    assert when(0) is None
    assert when(1_700_000_000_000) == "2023-11-14 22:13:20Z"
    assert ago(0) is None
    assert ago(int(time.time() * 1000) - 7_200_000) == "2 h"
    assert [duration(s) for s in (0.04, 5, 90, 7200, 200_000)] == ["0.0 s", "5 s", "2 m", "2 h", "2 d"]


def test_long_values_are_cut() -> None:
    """Values are JSON in one line, cut with an ellipsis."""
    assert shortened(None) is None
    assert shortened({"a": [1]}) == '{"a": [1]}'
    assert shortened("x" * 100, 10) == "x" * 9 + "…"


def test_table_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a narrow terminal long cells are folded, never cut, and markup in a cell is text."""
    written = io.StringIO()
    monkeypatch.setattr(cli_rich, "Console", lambda: Console(file=written, width=30))
    cli_rich.print_table(("OPERATION", "STATUS"), [("[red]" + "x" * 40, "in doubt")])
    text = written.getvalue()
    assert text.count("x") == 40
    assert "[red]" in text


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar for each thing that is read, with how many of how many."""
    written = io.StringIO()
    monkeypatch.setattr(
        cli_rich, "Console", lambda **_: Console(file=written, width=120, force_terminal=True, no_color=True)
    )
    with cli_rich.progress_bars("verify") as bar:
        bar("effects/0", 1, 4)
        bar("effects/0", 4, 4)
        bar("agents/0", 0, 0)
    text = written.getvalue()
    assert "verify effects/0" in text
    assert "4/4" in text
