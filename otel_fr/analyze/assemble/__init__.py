"""From the files of a folder to the evidence of each run in it. In this order:

`file_sets` separates runs whose files do not name them. `messages` has the sends and receives of one file;
`message_numbers` numbers them within their pairs (with `message_alignment` where older ones are missing).
`only_open` recognises files without completed calls. `run_columns` finds, over the columns of all ranks, the
collectives that need no judgement. `message_patterns` finds ranks that sent the same number of messages in every step.
`runs` brings these together: `Run` and its `Evidence`.
"""
