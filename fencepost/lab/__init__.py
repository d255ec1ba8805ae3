"""The lab: a run that you can watch, step through and add faults to.

A recorded run becomes one JSON value (document.py): every event in words, and what it changed. The page, the
terminal and the live view only apply these changes and filter; nothing is simulated twice.
"""
