"""The demonstration: real flights through a pipeline that is killed again and again, then checked."""
