#!/usr/bin/env bash
# Apache's Thrift for Node (`thrift` of npm, of the compiler's version: what 0.17 generates does not run on 0.24). Used
# as python.sh.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
act=$1 folder=$2
shift 2
if [ "$act" = prepare ]; then
    . "$here/compiler.sh"
    need node nodejs
    need npm npm
    if [ ! -d "$folder/node_modules/thrift" ]; then
        echo '{ "private": true, "dependencies": { "thrift": "0.17.0" } }' >"$folder/package.json"
        (cd "$folder" && npm install --silent --no-audit --no-fund)
    fi
    thrift --gen js:node -out "$folder" "$here/everything.thrift"
else
    NODE_PATH=$folder:$folder/node_modules exec node "$here/node/side.js" "$act" "$@"
fi
