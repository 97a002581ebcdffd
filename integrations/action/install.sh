#!/usr/bin/env bash
# The action's first step: install its own checkout, or PACKAGE, with the runner's own Python.
set -euo pipefail
export PYTHONSAFEPATH=1 # nothing that lies in the checkout is imported
package="${PACKAGE:-}"
if [ "$package" = none ]; then
    exit 0
fi
if [ -z "$package" ]; then
    package="$GITHUB_ACTION_PATH${EXTRAS:+[$EXTRAS]}"
fi
python3 -m venv "$RUNNER_TEMP/onnxfold"
"$RUNNER_TEMP/onnxfold/bin/python" -m pip install --quiet --disable-pip-version-check "$package"
echo "$RUNNER_TEMP/onnxfold/bin" >>"$GITHUB_PATH"
