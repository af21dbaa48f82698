"""Facades of the recipes for threads."""
