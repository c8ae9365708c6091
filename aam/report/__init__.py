"""Report: figures, tables and the HTML page of a run, from the files of its run folder alone."""
