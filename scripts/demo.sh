#!/usr/bin/env bash
# Starts the demo fleet, asks its model a question, and says how to go on.
set -euo pipefail

halcyon up
echo
echo '$ halcyon infer smollm2-135m "Why is the sky blue? Answer in one sentence."'
halcyon infer smollm2-135m "Why is the sky blue? Answer in one sentence." --max-tokens 64 --temperature 0 --account
listen=$(halcyon status --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["listen"])')
cat <<TXT

Halcyon is serving smollm2-135m on http://$listen (OpenAI API under /v1).

  source .venv/bin/activate                       puts \`halcyon\` on your PATH
  halcyon infer smollm2-135m "Tell me a story"     ask again
  halcyon status                                   see the fleet
  curl http://$listen/v1/chat/completions -H 'content-type: application/json' \\
    -d '{"model": "smollm2-135m", "messages": [{"role": "user", "content": "Hello"}]}'
  make down                                        stop it (running requests finish first)
TXT
