"""What Kafka's client says of itself, on Python's logging: the logger `fencepost.kafka`.

The client would write its lines to stderr, past everything that a program decides about its log. It hands them
over instead while it is polled. Nobody who has not configured logging sees them: what went wrong is in our own
errors, and in our own log.
"""

from __future__ import annotations

import logging

NAME = "fencepost.kafka"


def client_logger() -> logging.Logger:
    """The logger for a client of Kafka; without a handler anywhere its lines go nowhere."""
    logger = logging.getLogger(NAME)
    if not any(isinstance(handler, logging.NullHandler) for handler in logger.handlers):
        logger.addHandler(logging.NullHandler())  # else logging's last resort would print warnings on stderr
    return logger
