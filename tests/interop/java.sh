#!/usr/bin/env bash
# Apache's Thrift for Java (`org.apache.thrift:libthrift` of Maven Central). Used as python.sh.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
act=$1 folder=$2
shift 2
if [ "$act" = prepare ]; then
    . "$here/compiler.sh"
    need javac default-jdk-headless
    need mvn maven
    mkdir -p "$folder/src/main/java"
    cp "$here/java/pom.xml" "$folder/pom.xml"
    cp "$here/java/Side.java" "$folder/src/main/java/Side.java"
    thrift --gen java:generated_annotations=suppress -out "$folder/src/main/java" "$here/everything.thrift"
    (cd "$folder" && mvn -q -B package)
else
    exec java -cp "$folder/target/side.jar:$folder/target/lib/*" Side "$act" "$@"
fi
