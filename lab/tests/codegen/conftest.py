"""Provide the Android tools to tests that compile classes."""

from __future__ import annotations

from android.conftest import app_tools, kotlin_tools, kotlinc, library, toolchain

__all__ = ["app_tools", "kotlin_tools", "kotlinc", "library", "toolchain"]
