"""Converts a GGUF to what loads fast: float32 safetensors, tokenizer, chat template.

float32 keeps every dequantised value as it is (a Q4 value is a 16-bit scale times a small integer plus a 16-bit minimum: more bits than
a half-precision number has); loading casts to the dtype that is wanted.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from halcyon.engine.quiet import silence_model_libraries
from halcyon.engine.sources.cache import Progress
from halcyon.errors import ModelUnavailable

_TURN_ENDS = ("<|im_end|>", "<end_of_turn>", "<|eot_id|>", "<|end|>", "<|end_of_turn|>")
"""Tokens that chat templates put at the end of a turn. Where a template uses one, it ends an answer beside the tokenizer's own token."""


def convert_gguf(gguf: Path, directory: Path, progress: Progress) -> str:
    """Writes the converted model into `directory`; returns the dtype stored.

    Raises:
        ModelUnavailable: `gguf` or `accelerate` is missing, or the file cannot be read.
    """
    missing = [name for name in ("gguf", "accelerate") if find_spec(name) is None]
    if missing:
        raise ModelUnavailable(f"converting a GGUF needs the package `{missing[0]}`; install halcyon[demo] and try again")
    silence_model_libraries()
    import torch  # seconds of import, wanted only here
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    progress("preparing", "reading the tokenizer", 0.1)
    try:
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        progress("preparing", "dequantising the weights (once; under a minute)", 0.2)
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = str(error).partition("\n")[0][:300]
        raise ModelUnavailable(f"{gguf.name} cannot be converted: {reason}") from error
    model.generation_config.eos_token_id = _eos_token_ids(model, tokenizer)
    progress("preparing", "writing safetensors", 0.8)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return "float32"


def _eos_token_ids(model: Any, tokenizer: Any) -> list[int]:  # noqa: ANN401 - transformers is not typed for us
    named = model.generation_config.eos_token_id
    found = set(named if isinstance(named, list) else [named]) | {tokenizer.eos_token_id}
    template, vocabulary = tokenizer.chat_template or "", tokenizer.get_vocab()
    found |= {vocabulary[token] for token in _TURN_ENDS if token in template and token in vocabulary}
    return sorted(token_id for token_id in found if token_id is not None and token_id >= 0)
