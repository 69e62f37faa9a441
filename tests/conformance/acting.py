"""Processes that act in a world: started, held, paused, killed, and listened to."""

from __future__ import annotations

import json
import queue
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from conformance.waiting import PATIENCE_S

from fencepost.deploy.processes import wait_until

WORKER = Path(__file__).with_name("worker.py")
Answer = dict[str, Any]


class Worker:
    """A process that acts in a world. Its answers are read as they come."""

    def __init__(self, plan: dict[str, Any], directory: Path) -> None:
        self._directory = directory
        self._answers: queue.Queue[Answer | None] = queue.Queue()
        self.answers: list[Answer] = []
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER), json.dumps(plan)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._errors: list[str] = []
        self._threads = [threading.Thread(target=t, daemon=True) for t in (self._read, self._read_errors)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._answers.put(json.loads(line))
        self._answers.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self._errors.extend(self.process.stderr)

    def next(self) -> Answer:
        """The answer to its next step."""
        answer = self._answers.get(timeout=PATIENCE_S)
        assert answer is not None, f"the worker ended: {''.join(self._errors)}"
        self.answers.append(answer)
        return answer

    def finish(self) -> list[Answer]:
        """All its answers, once it has ended well."""
        self._drain()
        assert self.process.returncode == 0, "".join(self._errors)
        return self.answers

    def dies(self) -> list[Answer]:
        """All that it answered before it was killed."""
        self._drain()
        assert self.process.returncode == -signal.SIGKILL, "".join(self._errors)
        return self.answers

    def _drain(self) -> None:
        while (answer := self._answers.get(timeout=PATIENCE_S)) is not None:
            self.answers.append(answer)
        self.process.wait(PATIENCE_S)
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def wait_held(self, name: str) -> None:
        """Until it has come to the hold of this name."""
        reached = wait_until(lambda: self._signal(name, "held").exists() or self.process.poll() is not None, PATIENCE_S)
        assert reached, f"never came to {name}"
        assert self.process.poll() is None, "".join(self._errors)

    def release(self, name: str) -> None:
        """Let it go on from that hold."""
        self._signal(name, "go").touch()

    def _signal(self, name: str, what: str) -> Path:
        return self._directory / f"{name}.{what}"

    def pause(self) -> None:
        """Stop it where it is (SIGSTOP), and wait until it stands still."""
        self.process.send_signal(signal.SIGSTOP)
        assert wait_until(lambda: self._state() == "T", PATIENCE_S)

    def _state(self) -> str:
        found = re.search(r"\) (\S)", Path(f"/proc/{self.process.pid}/stat").read_text())
        return found[1] if found else ""

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_S)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
