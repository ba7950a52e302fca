"""The forms of an analysis. `overview` has what several of them show; the others are one form each:

`text` (and JSON), `terminal`, `markdown`, `page` (HTML, with `timeline`), `perfetto`, `entries_table` (``-j``),
`database` and `calls_file` (``--output``), `otlp_traces` (``--otlp``), and `screen` for prompts and notebooks.
"""
