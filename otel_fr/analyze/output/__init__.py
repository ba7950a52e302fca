"""The forms of an analysis. `overview` has what several of them show; the others are one form each:

`text` (and JSON), `terminal`, `markdown`, `page` (HTML, with `timeline`), `entries_table` (``-j``), `database`
(``--output``) and `otlp_traces` (``--otlp``).
"""
