"""The flat event of the chains that are measured beside the projector."""

from __future__ import annotations

from typing import Any

import fastavro

TEXT = ("op_id", "attempt_id", "agent_id", "branch_id", "session_id", "tool", "effect_class", "identity_digest",
         "content_digest")  # fmt: skip
SCHEMA: Any = fastavro.parse_schema({
    "type": "record", "name": "Event", "fields": [
        {"name": "kind", "type": "string"},
        *({"name": name, "type": "string"} for name in TEXT),
        {"name": "seq", "type": "long"}, {"name": "time_ms", "type": "long"},
        {"name": "payload", "type": ["null", "bytes"]},
    ],
})  # fmt: skip
