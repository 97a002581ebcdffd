"""The published device table beside ours."""
