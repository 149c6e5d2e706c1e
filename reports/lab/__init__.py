"""The lab: the teaching experiment as a page on this machine, over a small JSON API (docs/lab.md)."""
