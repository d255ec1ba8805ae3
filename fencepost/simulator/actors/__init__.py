"""Actors: the client processes of a run and the scripts that they follow."""
