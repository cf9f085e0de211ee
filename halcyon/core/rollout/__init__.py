"""Which version of a model a request gets."""
