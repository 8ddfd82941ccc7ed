"""Handwritten digits among fifty clients: a Flower app like any other."""
