"""The tick scheduler, its two drivers (virtual clock: simulate; real clock: engine), and the HTTP server.

Never imports the load generator: the measured side must not share code with the side that measures.
"""
