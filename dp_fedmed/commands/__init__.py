"""What `dp-fedmed` can be told to do: one module a command, each with its help and `main`.

A command's `main` takes the words after its name and returns an exit code.
"""

EXIT_STOPPED, EXIT_USAGE, EXIT_FINDING, EXIT_INTERRUPTED = 1, 2, 3, 130
