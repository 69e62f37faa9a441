"""Which codec a ledger's URL asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ledger.positions import Topic
from ..schemas import registry_codec

if TYPE_CHECKING:
    from ..ledger.urls import StoreUrl
    from ..schemas import Codec


def codec_of(url: StoreUrl) -> Codec | None:
    """The codec on the URL's schema registry; None when it names none, and records describe themselves.

    Raises RegistryUnavailableError; trying again is safe.
    """
    if not url.registry:
        return None
    return registry_codec(url.registry, tuple(url.topic(topic) for topic in Topic))
