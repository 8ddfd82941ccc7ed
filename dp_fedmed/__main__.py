"""`python -m dp_fedmed` is `dp-fedmed`."""

from dp_fedmed.cli import entry

if __name__ == "__main__":
    entry()
