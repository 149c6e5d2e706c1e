"""The nouns: request rows, run directories, trace formats, arrivals, metrics, queueing formulas.

Pure but for the files it reads and writes, and for `machine`: no sockets, no event loop, no clock. Imports
none of the other packages.
"""
