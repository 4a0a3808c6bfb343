#!/usr/bin/env bash
# Apache's Thrift for Python (`thrift` of PyPI).
#
#   python.sh prepare FOLDER             installs it and generates code into FOLDER
#   python.sh client  FOLDER PORT WIRE   calls the server at 127.0.0.1:PORT
#   python.sh server  FOLDER WIRE        prints its port, and serves until it is killed
#
# WIRE is framed-binary, framed-compact, unframed-binary or unframed-compact.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
act=$1 folder=$2
shift 2
if [ "$act" = prepare ]; then
    . "$here/compiler.sh"
    if ! "$folder/venv/bin/python" -c 'import thrift' 2>/dev/null; then
        python3 -c 'import ensurepip' 2>/dev/null || install python3-venv
        python3 -m venv --clear "$folder/venv"
        "$folder/venv/bin/python" -m pip install --quiet 'thrift==0.25.0'
    fi
    thrift --gen py -out "$folder" "$here/everything.thrift"
else
    PYTHONPATH=$folder exec "$folder/venv/bin/python" "$here/python/side.py" "$act" "$@"
fi
