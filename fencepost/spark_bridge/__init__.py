"""PySpark reads the log directory: the data source and the jobs on top of it."""
