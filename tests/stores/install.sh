#!/usr/bin/env bash
# Installs in target/ what test_stores.py runs, each part where its tools are: Go, npm, or Maven with Cargo and gcc.
# A test is skipped if its part is missing.
set -uo pipefail
cd "$(dirname "$0")"
readonly target=$PWD/target
mkdir -p "$target"

part() { # part NAME INSTALLED TOOL...: runs the function NAME unless INSTALLED exists
  local name=$1 installed=$2 tool
  shift 2
  [[ ! -e "$target/$installed" ]] || return 0
  for tool; do
    command -v "$tool" >/dev/null || { echo "stores: no $name, because it needs $tool"; return 0; }
  done
  "$name" || echo "stores: no $name, because it could not be installed"
}

gcs() {
  GOBIN=$target/bin go install github.com/fsouza/fake-gcs-server@v1.56.1
}

azure() {
  npm install --prefix "$target" --no-audit --no-fund --silent azurite@3.35.0
}

hdfs() {
  mvn --quiet --batch-mode --file pom.xml dependency:copy-dependencies && libhdfs
}

libhdfs() { # The source of 3.3 works with later versions. Its own build needs the whole of Hadoop and CMake.
  local java source
  java=$(dirname "$(dirname "$(readlink -f "$(command -v javac)")")")
  cp -r libhdfs "$target" && (cd "$target/libhdfs" && cargo vendor --quiet >/dev/null) || return 1
  source=$target/libhdfs/vendor/hdfs-sys/libhdfs
  gcc -w -O2 -shared -fPIC -fcommon -I"$java/include" -I"$java/include/linux" \
    -I"$source" -I"$source"/hdfs_3_3{,/include,/os,/os/posix} "$source"/hdfs_3_3{,/os/posix}/*.c \
    -L"$java/lib/server" -ljvm -Wl,-rpath,"$java/lib/server" -o "$target/libhdfs.so"
}

part gcs bin/fake-gcs-server go
part azure node_modules/.bin/azurite-blob npm
part hdfs libhdfs.so mvn javac cargo gcc
