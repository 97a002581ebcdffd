#!/usr/bin/env bash
# The action's first step: install PACKAGE with the runner's own Python.
set -euo pipefail
if [ -n "${PACKAGE:-}" ]; then
    python3 -I -m venv "$RUNNER_TEMP/onnxfold"
    "$RUNNER_TEMP/onnxfold/bin/python" -I -m pip install --quiet --disable-pip-version-check "$PACKAGE"
    echo "$RUNNER_TEMP/onnxfold/bin" >>"$GITHUB_PATH"
fi
