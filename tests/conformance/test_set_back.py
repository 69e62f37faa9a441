"""The ledger lives elsewhere than the agent's state: no restore of that state takes an effect out of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conformance.worlds import Home, World, charge

from fencepost.ledger import InvalidArgumentError, Ledger, ReasonKind, RefusedError, urls
from fencepost.ledger.stores import store_url

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.slow
def test_restored_agent_state_removes_no_effect(world: World, ledger: Ledger, tmp_path: Path) -> None:
    """An agent whose whole working directory is put back has still done what it did."""
    state = tmp_path / "agent"
    state.mkdir()
    [token, _] = [a["value"] for a in world.run({"do": "checkpoint", "id": "c"}, charge("effect"))]
    (state / "memory").write_text(token)
    shutil.copytree(state, tmp_path / "backup")
    (state / "memory").write_text("later")
    shutil.rmtree(state)
    shutil.copytree(tmp_path / "backup", state)
    restored = (state / "memory").read_text()
    verdict = ledger.authorize_rollback(world.agent, checkpoint="c", restored=restored)
    assert [r.effect.op_id for r in verdict.reasons if r.effect] == [world.op_id("effect")]
    [answer] = world.run(charge("effect"), resumed_from=restored)
    assert (answer["ran"], world.hits("effect")) == (False, 1)


def test_ledger_that_was_set_back(fresh_home: Callable[[], Home]) -> None:
    """A ledger that knows less than the agent's watermark is refused: set back where that is possible, or another one."""
    home = fresh_home()
    with Ledger.open(home.url) as ledger, ledger.session("agent") as session:
        session.checkpoint("early")
    other, file = home, Path(urls.parse(home.url).path)
    if home.embedded:
        shutil.copy(file, file.with_suffix(".backup"))
    else:
        other = fresh_home()
    with Ledger.open(home.url) as ledger, ledger.session("agent") as session:
        mark = session.checkpoint("late")
    if home.embedded:
        for name in file.parent.glob(f"{file.name}-*"):
            name.unlink()
        shutil.copy(file.with_suffix(".backup"), file)
    else:
        with Ledger.open(other.url) as ledger, ledger.session("agent") as session:
            session.checkpoint("early")
    wanted = ReasonKind.WATERMARK_AHEAD if home.embedded else ReasonKind.WATERMARK_OF_ANOTHER_LEDGER
    with Ledger.open(other.url) as ledger:
        with pytest.raises(RefusedError) as caught:
            ledger.session("agent", resumed_from=mark).open()
        assert caught.value.reason.kind is wanted
        verdict = ledger.authorize_rollback("agent", checkpoint="early", restored=mark.token)
        assert not verdict.authorised


def test_where_the_ledger_is_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Argument > FENCEPOST_URL > fencepost.toml > the user's state directory, which is no place in the working tree."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("FENCEPOST_URL", raising=False)
    place = Path(urls.parse(store_url()).path)
    assert tmp_path / "state" in place.parents
    assert tmp_path / "work" not in place.parents
    Path("fencepost.toml").write_text('url = "sqlite:///from/the/file.db"\n')
    assert store_url() == "sqlite:///from/the/file.db"
    monkeypatch.setenv("FENCEPOST_URL", "sqlite:///from/the/environment.db")
    assert store_url() == "sqlite:///from/the/environment.db"
    assert store_url("sqlite:///given.db") == "sqlite:///given.db"


@pytest.mark.parametrize("blank", ["", "  "])
def test_a_blank_url_is_no_other_ledger(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, blank: str) -> None:
    """Given blank, as an argument, in the environment, or in the file, it is refused; no ledger is made anywhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("FENCEPOST_URL", raising=False)

    def refused(url: str | None = None) -> None:
        with pytest.raises(InvalidArgumentError) as caught:
            Ledger.open(url)
        assert caught.value.field == "url"
        assert not (tmp_path / "state").exists()

    refused(blank)
    Path("fencepost.toml").write_text(f'url = "{blank}"\n')
    refused()
    monkeypatch.setenv("FENCEPOST_URL", blank)
    Path("fencepost.toml").unlink()
    refused()
    with pytest.raises(InvalidArgumentError, match="FENCEPOST_URL is given"):
        store_url()
