"""What Spark makes of the lake: results, and advice for brokers and managers.

Read in this order: `transforms` (pure functions of data frames: the algorithms), `jobs` (what each
job reads, keeps and writes, with its schemas), `runner` (how a job runs: once for every file,
whatever happens). `main` is what `spark-submit` starts. docs/analytics.md says how it is used.

Nothing here knows brokers or managers: the lake's fields (`dynatops.lake.fields`) and the names in
Redis (`dynatops.kit.advice.keys`) are all that is shared.
"""
