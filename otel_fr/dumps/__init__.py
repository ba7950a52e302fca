"""Flight-recorder files: otel-fr's own, PyTorch's and torchcomms'. No code in a file is run.

Reading, in order: `read` finds the files with `files`. `processes` has them read by processes with limits. `safe_parse`
turns the bytes of one into plain values; `ring_files` does so for ring files.
`entry_reader` and `recorders` turn a recorder's entries into the columns of `columns.Entries`, with `fields` (checks of
single fields) and `operation_names` (one name per operation). `resolve` completes what single entries leave open, and
`model.Dump` is the result; `entry.Entry` is one call of it.

Writing: `contents` has what goes into a file, `torchview` adapts calls to PyTorch's analyzer, `write` writes the file.
"""
