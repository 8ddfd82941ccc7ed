"""Many runs with one command: a pool of processes, one directory, one table."""
