"""Settings that every test shares."""

from hypothesis import settings

# Hypothesis's default deadline of 200 ms per example fails on a busy machine. What a test asserts must not
# depend on how fast the machine is, so no example has a deadline.
settings.register_profile("fencepost", deadline=None)
settings.load_profile("fencepost")
