#!/usr/bin/env bash
# Starts the demo fleet, which says how to go on, and asks its model a question.
set -euo pipefail

halcyon up
echo
echo '$ halcyon infer smollm2-135m "Why is the sky blue? Answer in one sentence."'
halcyon infer smollm2-135m "Why is the sky blue? Answer in one sentence." \
  --max-tokens 64 --temperature 0 --account
echo
echo 'First `source .venv/bin/activate`, which puts `halcyon` on your PATH.'
echo '`make down` stops it.'
