"""The jobs: what each reads, keeps, and writes. The algorithms are in `analytics.transforms`."""
