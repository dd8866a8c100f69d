"""Stock pipelines of diffusers, tiny and with random weights, and what they are called with.

    python -m tests.harness.catalogue              # run all, write docs/pipelines.md
    python -m tests.harness.catalogue --only Flux  # those whose name contains "Flux"

One entry is a class name, its components and the arguments of a request. Nothing is downloaded.
"""
