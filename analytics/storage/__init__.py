"""Where lakes and results are: folders, and stores of objects.

All that jobs know of files goes through `Storage` (storage.py): what there is, small files, data
frames. `opening.py` chooses an implementation by the URL and by what Spark can open itself:

    hadoop.py          what Spark opens: folders, hdfs://, and s3a:// and gs:// with their jars
    arrow.py           stores of objects without any jar, over pyarrow's file systems
    parquet_source.py  what executors run of that: a data source of Spark's in Python
    store_access.py    how executors open it
    places.py          folders of this machine, and what errors of stores mean

None of them renames what it wrote, but for files of commits where renaming is one step. Data counts
when a commit names it (`analytics.commits`); the one promise that needs a store's help is `create`:
of two who create the same file, one is told that it is there already.
"""
