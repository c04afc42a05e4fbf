#!/bin/sh
# Installs what the test lab needs on Debian or Ubuntu. Run as root; may be run again.
# Installation starts no daemon: while it runs, policy-rc.d forbids that.
set -eu

packages="openssh-server openssh-client sudo psmisc procps iproute2 gcc libc6-dev util-linux python3 $*"
policy=/usr/sbin/policy-rc.d

if [ "$(id -u)" != 0 ]; then
    echo "lab setup: needs root" >&2
    exit 1
fi
if ! command -v apt-get >/dev/null; then
    echo "lab setup: needs apt-get; install by hand: $packages" >&2
    exit 1
fi

missing=""
for package in $packages; do
    if ! dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed'; then
        missing="$missing $package"
    fi
done
if [ -z "$missing" ]; then
    echo "lab setup: everything is there"
    exit 0
fi

kept=""
restore() {
    rm -f "$policy"
    if [ -n "$kept" ]; then
        mv "$kept" "$policy"
    fi
}
if [ -e "$policy" ]; then
    kept="$policy.before-lab-setup"
    mv "$policy" "$kept"
fi
trap restore EXIT
trap 'exit 130' INT TERM HUP
printf '#!/bin/sh\nexit 101\n' >"$policy"
chmod 755 "$policy"

export DEBIAN_FRONTEND=noninteractive
echo "lab setup: reading package lists"
apt-get -qq update
echo "lab setup: installing$missing"
# shellcheck disable=SC2086
apt-get -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 install $missing >/dev/null
echo "lab setup: done"
