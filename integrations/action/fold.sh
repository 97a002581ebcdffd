#!/usr/bin/env bash
# The action's second step: fold MODEL into OUTPUT, and tell later steps and the summary of the run what came of it.
set -euo pipefail
read -r -a options <<<"$ARGUMENTS"
onnxfold fold "$MODEL" "$OUTPUT" "${options[@]}" --report "$REPORT" --json >"$RUNNER_TEMP/onnxfold.json"
python3 -I - "$RUNNER_TEMP/onnxfold.json" "$GITHUB_OUTPUT" "$GITHUB_STEP_SUMMARY" <<'PYTHON'
import json
import sys

source, outputs, summary = sys.argv[1:]
with open(source, encoding="utf-8") as file:
    report = json.load(file)
before, after = report["before"], report["after"]
agreement = ((report.get("fidelity") or {}).get("outputs") or [{}])[0].get("top1_agreement")
with open(outputs, "a", encoding="utf-8") as file:
    file.write(f"sparsity={report['sparsity']}\nparameters={after['parameters']}\n")
    file.write(f"agreement={'' if agreement is None else agreement}\n")
rows = [("weights", "parameters"), ("MACs", "macs"), ("bytes", "size_bytes")]
with open(summary, "a", encoding="utf-8") as file:
    file.write("| onnxfold | before | after |\n|---|---:|---:|\n")
    for name, key in rows:
        numbers = ["unknown" if size[key] is None else f"{size[key]:,}" for size in (before, after)]
        file.write(f"| {name} | {numbers[0]} | {numbers[1]} |\n")
PYTHON
