#!/usr/bin/env bash
# The action's second step: fold MODEL into OUTPUT, compare both where that is asked for, and tell later steps and the
# summary of the run what came of it. It fails where a threshold is missed.
set -euo pipefail
read -r -a options <<<"$ARGUMENTS"
folded="$RUNNER_TEMP/onnxfold.json" compared="$RUNNER_TEMP/onnxfold-compare.json"
rm -f "$compared"
onnxfold fold "$MODEL" "$OUTPUT" "${options[@]}" --report "$REPORT" --json >"$folded"
read -r -a checks <<<"${COMPARE_ARGUMENTS:-}"
if [ -n "${DATA:-}" ]; then checks+=(--data "$DATA"); fi
if [ -n "${MIN_AGREEMENT:-}" ]; then checks+=(--min-agreement "$MIN_AGREEMENT"); fi
if [ -n "${MAX_ERROR:-}" ]; then checks+=(--max-error "$MAX_ERROR"); fi
if [ -n "${MIN_COSINE:-}" ]; then checks+=(--min-cosine "$MIN_COSINE"); fi
if [ -n "${MAX_KL:-}" ]; then checks+=(--max-kl "$MAX_KL"); fi
code=0
if [ "${#checks[@]}" -gt 0 ]; then
    onnxfold compare "$MODEL" "$OUTPUT" "${checks[@]}" --json >"$compared" || code=$?
fi
python3 -I - "$folded" "$compared" "$GITHUB_OUTPUT" "$GITHUB_STEP_SUMMARY" <<'PYTHON'
import json
import os
import sys

folded, compared, outputs, summary = sys.argv[1:]
with open(folded, encoding="utf-8") as file:
    report = json.load(file)
measured, failures = report.get("fidelity") or {}, []
if os.path.exists(compared) and os.path.getsize(compared):
    with open(compared, encoding="utf-8") as file:
        measured = json.load(file)
    failures = measured["failures"]
before, after = report["before"], report["after"]
first = (measured.get("outputs") or [{}])[0]
labelled = report.get("accuracy") or {}
accuracy = measured.get("accuracy_b")
values = {
    "sparsity": report["sparsity"],
    "parameters": after["parameters"],
    "agreement": first.get("top1_agreement"),
    "estimate": (report.get("estimate") or {}).get("agreement"),
    "accuracy": labelled.get("after") if accuracy is None else accuracy,
    "cosine": first.get("cosine"),
}
with open(outputs, "a", encoding="utf-8") as file:
    file.writelines(f"{name}={'' if value is None else value}\n" for name, value in values.items())
quality = {
    "accuracy": values["accuracy"],
    "estimated agreement on data": values["estimate"],
    f"agreement on {measured.get('inputs')}": values["agreement"],
    f"cosine on {measured.get('inputs')}": values["cosine"],
}
with open(summary, "a", encoding="utf-8") as file:
    file.write("| onnxfold | before | after |\n|---|---:|---:|\n")
    for name, key in [("weights", "parameters"), ("MACs", "macs"), ("bytes", "size_bytes")]:
        numbers = ["unknown" if size[key] is None else f"{size[key]:,}" for size in (before, after)]
        file.write(f"| {name} | {numbers[0]} | {numbers[1]} |\n")
    file.writelines(f"| {name} | | {value:.4g} |\n" for name, value in quality.items() if value is not None)
    file.writelines(f"\n**Not met:** {line}\n" for line in failures)
PYTHON
exit "$code"
