"""Facades of the recipes for asyncio."""
