"""Fetches a repository of the model hub, and gives up at once when the hub cannot be reached."""

from __future__ import annotations

import os
from pathlib import Path

from halcyon.engine.quiet import silence_model_libraries
from halcyon.engine.sources.cache import Progress
from halcyon.engine.sources.spec import HubSource
from halcyon.errors import ModelUnavailable

_CONNECT_TIMEOUT_S = 5
_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "tokenizer*", "*.model", "*.txt"]


def fetch_from_hub(spec: HubSource, directory: Path, progress: Progress) -> Path:
    """The snapshot's directory. A snapshot that was fetched before is used without asking the hub when the hub cannot be reached.

    Raises:
        ModelUnavailable: no such repository or revision, no permission, or no way to the hub and no earlier snapshot.
    """
    os.environ.setdefault("HF_HUB_ETAG_TIMEOUT", str(_CONNECT_TIMEOUT_S))
    os.environ.setdefault("HF_HUB_DOWNLOAD_TIMEOUT", "30")
    silence_model_libraries()
    import httpx
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    where = f"source 'hf://{spec.repository}{'@' + spec.revision if spec.revision else ''}'"
    progress("preparing", f"asking the hub for {spec.repository}", None)
    try:
        HfApi().model_info(spec.repository, revision=spec.revision, timeout=_CONNECT_TIMEOUT_S)
        progress("preparing", f"fetching {spec.repository}", None)
        found = snapshot_download(spec.repository, revision=spec.revision, cache_dir=directory, allow_patterns=_PATTERNS)
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no"
        raise ModelUnavailable(f"{where}: the hub answered {status}; check the name, the revision and your access token") from error
    except (httpx.HTTPError, OSError) as error:
        try:
            found = snapshot_download(spec.repository, revision=spec.revision, cache_dir=directory, local_files_only=True)
        except LocalEntryNotFoundError:
            raise ModelUnavailable(
                f"{where}: the hub cannot be reached ({type(error).__name__}) and no earlier copy is here; "
                "check the network, or copy the model into a directory and name that as the source"
            ) from error
    return Path(found)
