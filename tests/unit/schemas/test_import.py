"""Importing the package does nothing yet."""

import subprocess
import sys

HEAVY = ("fastavro", "confluent_kafka", "httpx", "httpx2", "asyncio")


def test_importing_loads_no_heavy_library() -> None:
    """The Avro library and the registry's client cost tens and hundreds of milliseconds; they wait for the first use."""
    code = f"import sys, fencepost.schemas; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
