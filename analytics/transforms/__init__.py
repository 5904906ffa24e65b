"""The algorithms, as functions of data frames: no files, no clock, no state of their own."""
