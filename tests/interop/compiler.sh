# Sourced by the scripts of the languages: makes sure of Apache's compiler, Debian's `thrift-compiler`, and of other packages.

# need COMMAND PACKAGE: installs the package if the command is not there.
need() {
    command -v "$1" >/dev/null || install "$2"
}

install() {
    local as_root=()
    [ "$(id -u)" = 0 ] || as_root=(sudo)
    "${as_root[@]}" apt-get -o DPkg::Lock::Timeout=600 update -qq
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -y -qq "$@"
}

need thrift thrift-compiler
