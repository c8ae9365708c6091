"""Acceptance of a host and an image: what is correct, how fast it is, and what memory it takes.

A part measures one subject as a process of its own and compares it with what is expected;
`parts.PARTS` is the registry. `runner` runs them, `result` is the file, `page` shows it.
"""
