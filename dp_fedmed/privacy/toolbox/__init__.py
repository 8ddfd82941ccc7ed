"""Mechanisms and accountants for tables and teaching; no run uses them."""
