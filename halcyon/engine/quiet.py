"""Keeps the model libraries from writing to the terminal: their progress bars and warnings are not ours, and some print token ids."""

from __future__ import annotations

import logging
import os
import warnings


def silence_model_libraries() -> None:
    """Call once in a process before models are loaded. Errors still come as exceptions."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    for name in ("torch", "huggingface_hub", "filelock", "ContinuousBatchingLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module=r"(torch|transformers|huggingface_hub)\b.*")
