#!/bin/bash
# Take every new checkpoint of a training through the gate: simulation, station, canary.
#
#     examples/gate_each_checkpoint.sh BASELINE TRAINING SUITE [SECONDS]
#
# TRAINING is the output_dir of lerobot-train, which may still run. Every SECONDS (60; 0: one round
# and out) each checkpoint that is written whole goes on where it was: a later stage begins once the
# one before has passed, and robots of a canary hear of a roll-back. One that has its answer
# (outputs/gate/…/answer; delete it to ask again) is done with. What `gaploop gate` needs beside goes into GATE_OPTIONS, such as
# GATE_OPTIONS="--config_path=gate.yaml". Ctrl-C ends it; the same command goes on.
set -u
baseline=$1 training=$2 suite=$3 every_s=${4:-60}
trap 'exit 130' INT TERM
while :; do
    for checkpoint in "$training"/checkpoints/[0-9]*; do
        # LeRobot writes training_state after the policy.
        [ -d "$checkpoint/training_state" ] || continue
        folder=outputs/gate/$(basename "$training")_$(basename "$checkpoint")
        [ -e "$folder/answer" ] && continue
        fleet=()
        if grep -q '^canary:' "$suite"; then
            mkdir -p "$folder/reports"
            fleet=(--reports="$folder/reports")
        fi
        # shellcheck disable=SC2086  # GATE_OPTIONS are several words
        gaploop gate --baseline="$baseline" --candidate="$checkpoint/pretrained_model" \
            --suite="$suite" --output_dir="$folder" "${fleet[@]}" ${GATE_OPTIONS:-}
        case $? in
            0) echo promote >"$folder/answer" ;;
            1) echo reject >"$folder/answer" ;;
            3) [ -e "$folder/assignment.json" ] || echo inconclusive >"$folder/answer" ;;
            130) exit 130 ;;
        esac # 2: the line above says what is missing; 3 in a canary: its robots go on
    done
    [ "$every_s" = 0 ] && break
    sleep "$every_s"
done
