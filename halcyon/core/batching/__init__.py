"""When work leaves a queue, and with what: at request level and at iteration level."""
