"""The ground: terms, errors, messages, record batches and frames. No I/O, no clock, no chance."""
