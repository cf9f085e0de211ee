"""The deciding core: events in, actions out. No input or output, no clock, no coin of its own."""
