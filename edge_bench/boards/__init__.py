"""Boards and emulators: firmware, arenas, and their toolchains."""
