"""Turns the files of a folder into runs with their evidence. The modules, in the order of their use:

`file_sets` separates runs whose files do not name them. `messages` holds the sends and receives of one file, and
`message_numbers` numbers them within their pairs (with `message_alignment` if older ones are missing).
`only_open` recognises files without completed calls. `run_columns` finds, on the columns of all ranks, the collectives
that need not be judged. `message_patterns` finds ranks that sent the same number of messages in every step. `runs`
makes each `Run` with its `Evidence` from these.
"""
