#!/usr/bin/env bash
# Apache's Thrift for C++ (Debian's `libthrift-dev`). Used as python.sh.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
act=$1 folder=$2
shift 2
if [ "$act" = prepare ]; then
    . "$here/compiler.sh"
    need g++ g++
    # Its headers ask for those of Boost, which the package does not depend on.
    for header in thrift/TProcessor.h boost/numeric/conversion/cast.hpp; do
        [ -e "/usr/include/$header" ] || install libthrift-dev libboost-dev
    done
    # The files that are shipped are for every compiler.
    mkdir -p "$folder/shipped"
    for idl in "$here"/../../examples/idl/*.thrift "$here"/../../crates/hatkv/idl/hatkv.thrift; do
        thrift --gen cpp:no_skeleton -out "$folder/shipped" "$idl"
    done
    thrift --gen cpp:no_skeleton -out "$folder" "$here/everything.thrift"
    g++ -std=c++17 -O1 -I"$folder" -o "$folder/side" "$here/cpp/side.cpp" "$folder/Everything.cpp" "$folder/Wider.cpp" \
        "$folder/everything_types.cpp" -lthrift -pthread
else
    exec "$folder/side" "$act" "$@"
fi
