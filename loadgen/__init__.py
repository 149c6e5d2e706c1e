"""The load generator: pacing, the stamping transport, the readers of the wire, the open loop.

Imports nothing of the mock server: the measuring side must not inherit the measured side's bugs.
"""
