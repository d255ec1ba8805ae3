"""The demonstration: a pipeline over real flights whose processes are killed many times, and its check."""
