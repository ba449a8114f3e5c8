"""Federations across precisions, over whole runs: float32, 8 and 4 bits, mixed, once for all."""
