"""``otel-fr mcp``: a read-only Model Context Protocol server over one collector's API and a folder of files.

`cli` reads the options, `server` offers the tools, `texts` writes their answers. Only `server` imports the package
``mcp``.
"""
