"""``sidestream bench``: load for any server with the OpenAI Images API, and what comes of it.

`mix` and `plan` decide what is asked for and when, `client` asks, `load` keeps the time, and
`report` counts. `mix`, `plan` and `report` do no I/O.
"""
