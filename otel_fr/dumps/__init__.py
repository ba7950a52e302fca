"""Flight-recorder files: otel-fr's own, PyTorch's and torchcomms'. No code in a file is run.

Reading, in order: `read` finds the files with `files`. `processes` lets processes with limits read them. `safe_parse`
turns the bytes of a file into plain values, and `ring_files` does so for ring files. `entry_reader` and `recorders`
turn a recorder's entries into the columns of `columns.Entries`, with `fields` (checks of single fields) and
`operation_names` (one name per operation). `resolve` adds what only all entries together show. `model.Dump` is the
result, and `entry.Entry` is one of its calls.

Writing: `contents` collects the contents of a file, `torchview` adapts calls to PyTorch's analyzer, and `write` writes
the file.
"""
