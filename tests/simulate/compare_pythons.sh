#!/bin/bash
# Plays the replay of determinism.py in each of $PYTHONS, in an environment of its own, and compares the bytes.
# Environments are kept under build/, so that a second run takes seconds.
set -euo pipefail
first=
for python in $PYTHONS; do
    version=$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])')
    environment=build/determinism/$version
    if [ ! -e "$environment/installed" ]; then
        echo "Setting up $environment from requirements.lock."
        "$python" -m venv "$environment"
        "$environment/bin/python" -m pip install --quiet --require-hashes -r requirements.lock
        touch "$environment/installed"
    fi
    "$environment/bin/python" -m tests.simulate.determinism > "$environment/replay.json"
    echo "Python $version: $(sha256sum < "$environment/replay.json" | cut -c 1-16)"
    first=${first:-$environment/replay.json}
    cmp "$first" "$environment/replay.json"
done
