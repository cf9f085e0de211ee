"""Stub, replaced below."""

from __future__ import annotations

from halcyon.config.settings import ModelSettings
from halcyon.daemon.link import Link, OnFrame, OnLost


class RemoteLink:
    """Stub."""

    @classmethod
    def start(cls, replica_id: str, model: ModelSettings, *, on_frame: OnFrame, on_lost: OnLost) -> Link:
        """Stub."""
        raise NotImplementedError
