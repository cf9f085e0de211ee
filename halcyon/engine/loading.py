"""Loads a causal language model and its tokenizer from a local directory onto a device."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from halcyon.engine.quiet import silence_model_libraries
from halcyon.errors import ModelUnavailable

Dtype = Literal["auto", "float32", "bfloat16", "float16"]

_CPU_BF16_FLAGS = {"amx_bf16", "avx512_bf16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model ready to run.

    Attributes:
        model / tokenizer: transformers objects. eos_token_ids: ids that end an answer.
        context_limit: tokens the architecture was made for; `None` when the config does not say.
        weights_bytes: bytes of all parameters and buffers. kv_bytes_per_token: KV cache of one token over all layers.
    """

    model: Any
    tokenizer: Any
    eos_token_ids: frozenset[int]
    device: torch.device
    dtype: torch.dtype
    architecture: str
    context_limit: int | None
    weights_bytes: int
    kv_bytes_per_token: int


def choose_device(device: str) -> torch.device:
    """`auto` is the first CUDA device, else the CPU.

    Raises:
        ModelUnavailable: the device is not there.
    """
    if device == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise ModelUnavailable(f"device {device!r} is no device torch knows; expected auto, cpu or cuda:N") from error
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise ModelUnavailable(f"device {device!r} is not there: torch sees {torch.cuda.device_count()} CUDA devices; use auto or cpu")
    return chosen


def choose_dtype(dtype: Dtype, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 on CUDA and on CPUs that multiply it in hardware, else float32."""
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" or _cpu_has_bf16() else torch.float32
    chosen: torch.dtype = getattr(torch, dtype)
    return chosen


def choose_threads(threads: int, replicas: int) -> int:
    """CPU threads for one replica: `threads`, or for 0 the usable cores divided among `replicas`, at least one."""
    return threads or max(1, len(os.sched_getaffinity(0)) // max(1, replicas))


def load_model(directory: Path, *, dtype: torch.dtype, device: torch.device) -> LoadedModel:
    """Reads memory-mapped safetensors; only a change of dtype or device copies.

    Raises:
        ModelUnavailable: the directory holds no model that transformers can load, or it does not fit.
    """
    silence_model_libraries()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=dtype, attn_implementation="sdpa", local_files_only=True, use_safetensors=True, low_cpu_mem_usage=True
        )
        model = model.to(device).eval()
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).partition("\n")[0][:300]
        raise ModelUnavailable(f"{directory} cannot be loaded as a causal language model: {reason}") from error
    except torch.OutOfMemoryError as error:
        raise ModelUnavailable(f"the weights of {directory.name} do not fit on {device}; choose another device or dtype") from error
    config = model.config.get_text_config()
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        eos_token_ids=_eos_token_ids(model, tokenizer),
        device=device,
        dtype=dtype,
        architecture=str((model.config.architectures or [type(model).__name__])[0]),
        context_limit=getattr(config, "max_position_embeddings", None),
        weights_bytes=sum(part.nbytes for part in (*model.parameters(), *model.buffers())),
        kv_bytes_per_token=_kv_bytes_per_token(config, dtype),
    )


def _eos_token_ids(model: Any, tokenizer: Any) -> frozenset[int]:  # noqa: ANN401 - transformers is not typed for us
    named = getattr(model.generation_config, "eos_token_id", None)
    several = named if isinstance(named, list | tuple) else [named]
    return frozenset(int(token_id) for token_id in (*several, tokenizer.eos_token_id) if token_id is not None and token_id >= 0)


def _kv_bytes_per_token(config: Any, dtype: torch.dtype) -> int:  # noqa: ANN401 - transformers is not typed for us
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(config.num_hidden_layers * 2 * heads * head_dim * dtype.itemsize)


def _cpu_has_bf16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return False
    return not _CPU_BF16_FLAGS.isdisjoint(flags)
