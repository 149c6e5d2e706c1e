"""The top floor: agreement, summaries as tables, and what needs both a server and a load generator.

Those two are started as processes; only the simulator is called directly.
"""
