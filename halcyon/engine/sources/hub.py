"""Fetches a repository of the model hub, and gives up at once when the hub cannot be reached."""

from __future__ import annotations

import os
from pathlib import Path

from halcyon.engine.quiet import silence_model_libraries
from halcyon.engine.sources.cache import Progress
from halcyon.engine.sources.spec import HubSource
from halcyon.errors import ModelUnavailable

_CONNECT_TIMEOUT_S = 5
_READ_TIMEOUT_S = 30
_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "tokenizer*", "*.model", "*.txt"]


def fetch_from_hub(spec: HubSource, directory: Path, progress: Progress, *, endpoint: str | None = None) -> Path:
    """The snapshot's directory. A snapshot that was fetched before is used as it is when the hub cannot be reached.

    Raises:
        ModelUnavailable: no such repository or revision, no permission, or no way to the hub and no earlier snapshot.
    """
    os.environ.setdefault("HF_HUB_DOWNLOAD_TIMEOUT", str(_READ_TIMEOUT_S))
    silence_model_libraries()
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    where = f"source 'hf://{spec.repository}{'@' + spec.revision if spec.revision else ''}'"
    progress("preparing", f"fetching {spec.repository} from the hub", None)
    try:
        found = snapshot_download(
            spec.repository,
            revision=spec.revision,
            cache_dir=directory,
            allow_patterns=_PATTERNS,
            etag_timeout=_CONNECT_TIMEOUT_S,
            endpoint=endpoint,
        )
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no"
        raise ModelUnavailable(f"{where}: the hub answered {status}; check the name, the revision and your access token") from error
    except LocalEntryNotFoundError as error:
        raise ModelUnavailable(
            f"{where}: the hub cannot be reached and no earlier copy is here ({_cause(error)}); "
            "check the network, or copy the model into a directory and name that as the source"
        ) from error
    except OSError as error:
        raise ModelUnavailable(f"{where}: fetching stopped ({type(error).__name__}: {error.strerror or error}); try again") from error
    return Path(found)


def _cause(error: BaseException) -> str:
    return type(error.__cause__).__name__ if error.__cause__ is not None else type(error).__name__
