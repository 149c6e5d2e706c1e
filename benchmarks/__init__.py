"""Measures the load generator against a server that knows the truth. It runs from a checkout."""
