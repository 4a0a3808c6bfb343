# Sourced by tests/guest/run: makes the guest's kernel and root file system of Debian's packages, once. What is made is
# named by this file and `init`, so that a change of either makes it anew.

# What is in the guest, and the libraries that that needs. A name that this release does not have is left out; a library
# that is missing then is noticed below.
guest_packages="
    busybox-static libc6 libgcc-s1 zlib1g libibverbs1 ibverbs-providers librdmacm1 libnl-3-200 libnl-route-3-200 ibverbs-utils
    e2fsprogs libext2fs2 libext2fs2t64 libblkid1 libuuid1
    iproute2 libbpf1 libbsd0 libmd0 libmnl0 libelf1 libelf1t64 libcap2 libzstd1 liblzma5
    libtirpc3 libtirpc3t64 libgssapi-krb5-2 libkrb5-3 libk5crypto3 libkrb5support0 libcom-err2 libkeyutils1 libssl3
    libssl3t64 libxtables12 libselinux1 libpcre2-8-0 libdb5.3 libdb5.3t64"
guest_programs="ip tc rdma ibv_devinfo mke2fs"
# Debian's usual kernel: its kernel for clouds has no rdma_rxe.
guest_kernel=linux-image-amd64
guest_modules="dummy veth sch_netem crc32_generic crc32c_generic libcrc32c ib_core ib_uverbs rdma_ucm rdma_rxe
    loop ext4"

say() { printf 'tests/guest: %s\n' "$*" >&2; }
first() { local file; for file; do [ ! -e "$file" ] || { printf '%s' "$file"; return 0; }; done; return 1; }

# pack FOLDER FILE: an archive as the kernel takes it, its owner root whoever runs this. Not compressed: unpacking costs
# more in an emulated guest than the bytes do.
pack() { (cd "$1" && find . | cpio --quiet -o -H newc -R 0:0) >"$2"; }

# fetch FOLDER PACKAGE...: unpacks packages there, each into one of its own.
fetch() {
    local folder=$1 package file; shift
    mkdir -p "$folder"
    (cd "$folder" && apt-get -q download "$@" >log 2>&1) || { cat "$folder/log" >&2; say "run 'apt-get update'?"; return 1; }
    for package; do
        file=$(first "$folder/${package}_"*.deb) || { say "apt-get fetched no $package"; return 1; }
        dpkg-deb -x "$file" "$folder/$package"
        rm "$file"
    done
}

# needs SYSROOT FILE: the name and place of each library that a program needs, by the guest's own loader run here; the
# place is "missing" if there is none.
needs() {
    "$1/lib64/ld-linux-x86-64.so.2" --library-path "$1/lib/x86_64-linux-gnu:$1/usr/lib/x86_64-linux-gnu" --list "$2" \
        2>/dev/null | awk '$2 == "=>" { print $1, ($3 ~ /^\// ? $3 : "missing") }' || true    # static: none
}

# add_libraries IMAGE FILE ROOT: puts the libraries that FILE needs under ROOT, less those that the image has.
add_libraries() {
    local name path
    while read -r name path; do
        [ "$path" != missing ] || { say "$2 needs $name, which is not in the guest's packages"; return 1; }
        [ -e "$1/have/$name" ] || install -D -m 755 "$path" "$3/lib/x86_64-linux-gnu/$name"
    done < <(needs "$1/sysroot" "$2")
}

# add_module MODULES TREE NAME: puts a module into the image behind those that it depends on, in the order of loading.
add_module() {
    local name=${3//-/_} file out dependency
    ! grep -qsx "$name.ko" "$2/modules/list" || return 0
    file=$(find "$1" -regex ".*/${name//_/[-_]}\.ko\(\.xz\|\.zst\|\.gz\)?" -print -quit)
    [ -n "$file" ] || return 1
    out=$2/modules/$name.ko
    case $file in
        *.xz)  xz -dc "$file" >"$out" ;;
        *.zst) zstd -qdc "$file" >"$out" ;;
        *.gz)  gzip -dc "$file" >"$out" ;;
        *)     cp "$file" "$out" ;;
    esac
    for dependency in $(tr '\0' '\n' <"$out" | sed -n 's/^depends=//p' | tr ',' ' '); do
        add_module "$1" "$2" "$dependency" || true    # built into the kernel
    done
    echo "$name.ko" >>"$2/modules/list"
}

# extract_kernel BZIMAGE OUT: takes the kernel out of its wrapper, whose unpacking would take seconds in the guest.
extract_kernel() {
    local magic tool at
    for tool in xz zstd gzip; do
        case $tool in
            xz)   magic=$'\xfd7zXZ' ;;
            zstd) magic=$'\x28\xb5\x2f\xfd' ;;
            gzip) magic=$'\x1f\x8b\x08' ;;
        esac
        command -v "$tool" >/dev/null || continue
        for at in $(LC_ALL=C grep -abo -F "$magic" "$1" | cut -d: -f1); do
            # What stands behind the packed kernel makes these tools complain at its end.
            tail -c "+$((at + 1))" "$1" | "$tool" -dc >"$2" 2>/dev/null || true
            [ "$(head -c 4 "$2" | tail -c 3)" != ELF ] || [ "$(stat -c %s "$2")" -lt 10000000 ] || return 0
        done
    done
    cp "$1" "$2"
}

# build_image FOLDER: fills it with kernel, base.cpio, sysroot (the guest's libraries) and have (those in base.cpio).
build_image() {
    local new=$1 kernel release modules tree=$1/tree packages=() known name file
    kernel=$(apt-cache depends "$guest_kernel" | awk '$1 == "Depends:" && $2 ~ /^linux-image-[0-9]/ { print $2; exit }')
    [ -n "$kernel" ] || { say "apt knows no $guest_kernel: run 'apt-get update'"; return 1; }
    known=" $(apt-cache policy $guest_packages | awk '/^[^ ]/ { sub(":$", "", $1); n = $1 } $1 == "Candidate:" && $2 != "(none)" { print n }' | tr '\n' ' ')"
    for name in $guest_packages; do case $known in *" $name "*) packages+=("$name") ;; esac; done
    say "fetching $kernel and ${#packages[@]} packages"
    fetch "$new/packages" "$kernel" "${packages[@]}" || return 1

    release=${kernel#linux-image-} release=${release%-unsigned}
    extract_kernel "$new/packages/$kernel/boot/vmlinuz-$release" "$new/kernel"
    modules=$(first "$new/packages/$kernel"/{usr/,}lib/modules/"$release") || { say "$kernel has no modules"; return 1; }

    # Newer releases have everything under usr; make that so of every release.
    mkdir -p "$new/sysroot"/usr/{bin,sbin,lib,lib64}
    for name in bin sbin lib lib64; do ln -s "usr/$name" "$new/sysroot/$name"; done
    for name in "${packages[@]}"; do
        tar -C "$new/packages/$name" -cf - . | tar -C "$new/sysroot" --keep-directory-symlink -xf -
    done

    mkdir -p "$new/have" "$tree"/{bin,lib64,modules,etc/libibverbs.d,lib/x86_64-linux-gnu,usr/bin,usr/lib/x86_64-linux-gnu/libibverbs}
    cp "$new/sysroot/bin/busybox" "$tree/bin/busybox"
    ln -s busybox "$tree/bin/sh"
    cp -L "$new/sysroot/lib64/ld-linux-x86-64.so.2" "$tree/lib64/"
    # The verbs library finds its drivers by these two folders, and programs open it by name.
    cp "$new/sysroot"/etc/libibverbs.d/{rxe,siw}.driver "$tree/etc/libibverbs.d/"
    cp "$new/sysroot"/usr/lib/x86_64-linux-gnu/libibverbs/lib{rxe,siw}-*.so "$tree/usr/lib/x86_64-linux-gnu/libibverbs/"
    for name in libibverbs.so.1 librdmacm.so.1 libgcc_s.so.1 libpthread.so.0 libdl.so.2 librt.so.1 libm.so.6; do
        file=$new/sysroot/lib/x86_64-linux-gnu/$name
        [ -e "$file" ] || continue
        install -m 755 "$file" "$tree/lib/x86_64-linux-gnu/$name"
        add_libraries "$new" "$file" "$tree" || return 1
    done
    for name in $guest_programs; do
        file=$(first "$new/sysroot/bin/$name" "$new/sysroot/sbin/$name") || { say "no $name in the packages"; return 1; }
        install -m 755 "$file" "$tree/usr/bin/$name"
        add_libraries "$new" "$file" "$tree" || return 1
    done
    printf 'root:x:0:0:root:/root:/bin/sh\n' >"$tree/etc/passwd"
    printf '127.0.0.1 localhost guest\n' >"$tree/etc/hosts"
    for name in $guest_modules; do
        add_module "$modules" "$tree" "$name" || case $name in
            rdma_rxe|rdma_ucm|sch_netem|ext4) say "$kernel has no $name"; return 1 ;;
        esac
    done
    install -m 755 "$guest_folder/init" "$tree/init"
    echo "$release" >"$new/release"
    pack "$tree" "$new/base.cpio"
    for file in "$tree"/lib/x86_64-linux-gnu/*; do : >"$new/have/${file##*/}"; done
    # Only libraries are needed from here on.
    rm -rf "$tree" "$new/packages" "$new/sysroot"/usr/{bin,sbin,share,include} "$new/sysroot"/{etc,var}
}

# build_siw IMAGE: makes the module siw (Soft-iWARP) for the image's kernel. Debian leaves it out, but has the kernel's source
# and headers.
build_siw() {
    local image=$1 release series headers work source name
    command -v make >/dev/null && command -v cc >/dev/null || { say "building siw needs make and cc"; return 1; }
    release=$(cat "$image/release")
    series=$(printf '%s' "$release" | sed -E 's/^([0-9]+\.[0-9]+).*/\1/')
    headers=$(apt-cache depends "linux-headers-$release" | awk '$1 == "Depends:" && $2 ~ /^linux-(headers-.*-common|kbuild-)/ { print $2 }')
    say "building siw for $release"
    work=$(mktemp -d "$image/siw.XXXXXX")
    fetch "$work/packages" "linux-headers-$release" $headers "linux-source-$series" || return 1
    for name in $headers "linux-headers-$release"; do cp -a "$work/packages/$name/." "$work/"; done
    # The headers name each other by absolute path: turn those to here.
    grep -rlI --include=Makefile '/usr/src/linux-headers' "$work"/usr/src/*/ |
        xargs -r sed -i "s#/usr/src/linux-headers#$work/usr/src/linux-headers#g"
    source=linux-source-$series/drivers/infiniband/sw/siw
    tar -C "$work" -xJf "$work/packages/linux-source-$series/usr/src/linux-source-$series.tar.xz" "$source" || return 1
    make -C "$work/usr/src/linux-headers-$release" M="$work/$source" CONFIG_RDMA_SIW=m CONFIG_DEBUG_INFO_BTF_MODULES= \
        modules >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; say "siw did not build"; return 1; }
    strip --strip-debug "$work/$source/siw.ko"
    mv "$work/$source/siw.ko" "$image/siw.ko"
    rm -rf "$work"
}

guest_folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# make_image CACHE SIW: prints where the image is, after making it if it is not there, and the module siw if SIW is 1; one
# caller at a time.
make_image() {
    local cache=$1 siw=$2 key
    key=$(cat "$guest_folder/image.sh" "$guest_folder/init" | sha256sum | cut -c 1-12)
    mkdir -p "$cache"
    cache=$(cd "$cache" && pwd)
    exec 9>"$cache/lock"
    flock -w 900 9 || { say "$cache stayed locked"; return 1; }
    if [ ! -d "$cache/$key" ]; then
        rm -rf "$cache"/new.* "$cache"/????????????
        local new
        new=$(mktemp -d "$cache/new.XXXXXX")
        build_image "$new" || return 1
        mv "$new" "$cache/$key"
    fi
    [ "$siw" = 0 ] || [ -e "$cache/$key/siw.ko" ] || build_siw "$cache/$key" || return 1
    flock -u 9
    printf '%s' "$cache/$key"
}
