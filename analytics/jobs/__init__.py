"""The jobs, a module each, registered in `catalogue`: what each reads, keeps, and writes.

The algorithms are in `analytics.transforms`.
"""
