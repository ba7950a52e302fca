"""The output formats of an analysis. `overview` has what several formats show. Each other module is one format:

`text` (and JSON), `terminal`, `markdown`, `page` (HTML, with `timeline`), `perfetto`, `entries_table` (``-j``),
`database` and `calls_file` (``--output``), `otlp_traces` (``--otlp``), and `screen` for prompts and notebooks.
"""
