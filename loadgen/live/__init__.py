"""The live view of a run: a process of its own that reads what the run writes down, and draws it.

The process that sends and reads starts it, tells it what to say, and ends it; it never draws.
"""
