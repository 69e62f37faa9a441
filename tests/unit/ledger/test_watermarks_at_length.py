"""Looking for a token takes time linear in the text's length, whatever the text."""

from __future__ import annotations

import contextlib
import json
import time

import pytest

from fencepost.ledger.errors import WatermarkMangledError
from fencepost.ledger.positions import Position
from fencepost.ledger.watermarks import Watermark, _checksum

TOKEN = Watermark("5b1c9e5e-0f3a-4c1d-9d8e-2a7b6c5d4e3f", "agent_7/é~x.y", "main", Position(0, 41), 17).token
FAKE = "fencepost:w1:a:b:c:0.1:2:0123456789"
RESPELLED = f"fencepost:w1:{'%41' * 2000}:b:c:0.1:2"
PILES = {
    "prose": "The fence posts, and [[wiki]] links & more: 12.30:45 \n",
    "tokens": f"{TOKEN} ",
    "escaped tokens": json.dumps(TOKEN.replace("[", "&#91;").replace(":", ":\n")),
    "false tokens": f"[[{FAKE}]]",
    "doubtful hyphens": "[[" + FAKE.replace(":c:", ":" + "c-\n" * 10 + ":") + "]]",
    "long doubtful hyphens": "[[" + FAKE.replace(":c:", ":" + "c" * 7_900 + "-\n- " * 5 + ":") + "]]",
    "right checksum, other spelling": f"[[{RESPELLED}:{_checksum(RESPELLED)}]]",
    **{repr(unit): unit for unit in (
        "\\", "\\n", "\\u005c", "\\u005c" + "u005c" * 7, "&", "&amp;", "amp;", "&#0", "[", "]", "[ ", "[[f", "[[f]]", "[[fence",
        "[[fence aaaaaaaaaaaaaaaaaaaa", "-", "\n", "-\n", "--x", ".", "..1", "1", "1.1", "1.1:1:", "1.1 1 ", ":1", ":w1:", "<b ",
        "<br " + "a" * 199, "\x1b[1", "漢", "\u200b", "\ud800", " ", "fencepost", "fencepost w1 1.1 ", "fencepost:w1:a:b:",
        "[[fencepost:w1:a:b:c:1.1:1:", "%41", "f:", "0",
    )},
}  # fmt: skip


@pytest.mark.parametrize("name", PILES)
def test_a_long_text_takes_no_more_than_a_moment(name: str) -> None:
    """Whatever it is piled up from; quadratic work would take minutes. Measured is this thread's own time."""
    pile = PILES[name]
    for start in ("", "[[fencepost:w1:", "&#", "&", "[[f", "1.", "<br"):
        text = start + pile * (200_000 // len(pile) // (1 if start == "" else 4))
        began = time.thread_time()
        for wanted in ({}, {"agent_id": "x", "ledger_id": "y"}):
            with contextlib.suppress(WatermarkMangledError):
                Watermark.find(text, **wanted)
        assert time.thread_time() - began < 3


def test_what_is_too_long_for_a_token_is_not_read_both_ways() -> None:
    """Each reading costs what it is long."""
    began = time.thread_time()
    with pytest.raises(WatermarkMangledError):
        Watermark.find("[[" + FAKE.replace(":c:", ":" + ("c" * 100_000 + "-\n") * 10 + ":") + "]]")
    assert time.thread_time() - began < 1
