"""The peer of `bench/engine.py`: transformers' own continuous-batching manager, bare, in a process of its own.

Reads one JSON object a line, `{"prompts": [[ids…], …], "tokens": n}`, serves all prompts at once and answers with
`{"seconds": s, "tokens": total}`. Ends when its input ends.
"""

from __future__ import annotations

import json
import sys

import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from halcyon.clock import NS_PER_S, now_ns


def serve(directory: str, dtype: str, threads: int, max_batch: int, max_context: int) -> None:
    """Loads the model once and answers requests until end of input."""
    torch.set_num_threads(threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype)).to(device).eval()
    generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=max_context)
    page = 256 if device == "cuda" else 32
    batching = ContinuousBatchingConfig(
        page_size=page, num_blocks=-(-max_context // page) * max_batch, max_batch_tokens=1024, max_requests_per_batch=max_batch
    )
    manager = model.init_continuous_batching(generation_config=generation, continuous_batching_config=batching)
    manager.start()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        started = now_ns()
        manager.add_requests(request["prompts"], max_new_tokens=request["tokens"])
        total = 0
        for _ in request["prompts"]:
            total += len(manager.get_result(timeout=600).generated_tokens)
        print(json.dumps({"seconds": (now_ns() - started) / NS_PER_S, "tokens": total}), flush=True)
    manager.stop(block=True)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
