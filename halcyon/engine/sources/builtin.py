"""`builtin:tiny-llama?seed=N`: a seeded random Llama with a byte tokenizer, made on the spot; for tests, demos and first contact.

Its answers are gibberish on purpose, but varied: weights are drawn wide enough that greedy decoding wanders, and rows of the output layer
are scaled so that printable ASCII is common, other bytes happen (characters of several tokens, broken ones too) and the end token is rare.
The same seed gives the same files on every machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from halcyon.engine.quiet import silence_model_libraries
from halcyon.engine.token_bytes import byte_alphabet

if TYPE_CHECKING:
    import torch

BOS, EOS, PAD = "<s>", "</s>", "<pad>"
_BYTES = 256
_VOCABULARY = _BYTES + 3
_CONTEXT_TOKENS = 4096
_WEIGHT_DEVIATION = 0.3
_OTHER_BYTE_SCALE = 0.55
_SPECIAL_SCALE = 0.35


def write_tiny_llama(directory: Path, *, seed: int) -> None:
    """Writes config, weights and tokenizer into `directory`."""
    silence_model_libraries()
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=64,
        intermediate_size=176,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=_CONTEXT_TOKENS,
        bos_token_id=_BYTES,
        eos_token_id=_BYTES + 1,
        pad_token_id=_BYTES + 2,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    _fill(model, seed)
    model.save_pretrained(directory)
    _tokenizer().save_pretrained(directory)


def _fill(model: torch.nn.Module, seed: int) -> None:
    import torch  # seconds of import, wanted only here

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * _WEIGHT_DEVIATION)
            if name == "lm_head.weight":
                parameter.mul_(_row_scales().unsqueeze(1))


def _row_scales() -> torch.Tensor:
    import torch

    scales = torch.full((_VOCABULARY,), _OTHER_BYTE_SCALE)
    alphabet = byte_alphabet()
    scales[[token_id for character, token_id in _byte_ids().items() if 0x20 <= alphabet[character] < 0x7F]] = 1.0
    scales[_BYTES:] = _SPECIAL_SCALE
    return scales


def _byte_ids() -> dict[str, int]:
    return {character: at for at, character in enumerate(sorted(byte_alphabet()))}


def _tokenizer() -> Any:  # noqa: ANN401 - transformers is not typed for us
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(vocab=_byte_ids(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in (BOS, EOS, PAD)])
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, _BYTES)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS, pad_token=PAD, clean_up_tokenization_spaces=False
    )
