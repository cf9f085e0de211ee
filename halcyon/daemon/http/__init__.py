"""The HTTP API that clients talk to. `build_api` makes the application; what it calls is `halcyon.daemon.service`."""

from halcyon.daemon.http.app import build_api
from halcyon.daemon.http.metrics import HttpMetrics

__all__ = ["HttpMetrics", "build_api"]
