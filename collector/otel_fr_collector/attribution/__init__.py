"""What a launcher should do next with a job that failed: from its incidents alone (docs/guide/fault-tolerance.md).

`facts` takes from incidents what the rules need, `rules` is the table of rules (pure functions), and `answer` finds the
incidents of the run that is asked about.
"""
