#!/bin/sh
# Prepares this machine and this checkout.
#
#   tools/setup.sh system   system packages: through apt where that is possible
#   tools/setup.sh venv     .venv with the exact versions of requirements-dev.lock
#   tools/setup.sh tests    system packages that only tests need, where they can be had
#
# All do nothing where everything is there already.
set -eu
cd "$(dirname "$0")/.."

has() { command -v "$1" >/dev/null 2>&1; }
# bpftool and ldconfig are in /usr/sbin, which is not on every user's PATH.
PATH="$PATH:/usr/sbin:/sbin"

# The first interpreter that is new enough and can make a venv. The one on PATH comes first, as
# it is the host's choice; /usr/bin/python3 is the one that apt can complete.
find_python() {
	for python in ${PYTHON:-python3 /usr/bin/python3 python3.14 python3.13 python3.12 python3.11}; do
		if has "$python" && "$python" -c 'import ensurepip, sys, venv
sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
			echo "$python"
			return
		fi
	done
}

# Debian's packages for what is missing.
missing_packages() {
	has clang || has clang-14 || echo clang
	has clang-format || has clang-format-14 || echo clang-format
	has bpftool || echo bpftool
	has gcc || echo gcc
	# gcc only recommends it.
	[ -e /usr/include/stdio.h ] || echo libc6-dev
	has make || echo make
	[ -e /usr/include/bpf/bpf_helpers.h ] || echo libbpf-dev
	ldconfig -p 2>/dev/null | grep -q 'libbpf\.so\.1 ' || echo libbpf1
	[ -n "$(find_python)" ] || echo python3 python3-venv
	# The collector of the tests and the demo is linked with it, and its wheel does not say so.
	ldconfig -p 2>/dev/null | grep -q 'libpython3\.11\.so' || echo libpython3.11
}

# For the tests of the loader that reads kernel headers: what reads them, and some to read. Of the
# kernel that runs there may be none; any will do. For those of another C library: musl. For those of
# pages: a browser.
missing_test_packages() {
	/usr/bin/python3 -c 'import bcc' 2>/dev/null || echo python3-bpfcc
	has musl-gcc || echo musl-tools
	if is_debian; then
		arch=$(dpkg --print-architecture)
		ls -d /usr/src/linux-headers-*-"$arch" >/dev/null 2>&1 || echo "linux-headers-$arch"
		has_browser || echo chromium
	fi
}

is_debian() { grep -q '^ID=debian$' /etc/os-release 2>/dev/null; }

has_browser() { has chromium || has chromium-browser || has google-chrome; }

install_system() {
	packages=$(missing_packages | tr '\n' ' ')
	[ -n "$packages" ] || return 0
	if ! has apt-get; then
		echo "setup: these are missing, by their Debian names: $packages" >&2
		echo "setup: install them with this system's package manager, then run make again" >&2
		exit 1
	fi
	if [ "$(id -u)" != 0 ]; then
		echo "setup: these packages are missing: $packages" >&2
		echo "setup: run this as root, then run make again:" >&2
		echo "    apt-get install --no-install-recommends $packages" >&2
		exit 1
	fi
	# shellcheck disable=SC2086 # one word per package
	install $packages
	still=$(missing_packages | tr '\n' ' ')
	if [ -n "$still" ]; then
		echo "setup: still missing after the installation: $still" >&2
		exit 1
	fi
}

install_for_tests() {
	# What Ubuntu has under this name is a snap, which a container or a CI machine may not have.
	is_debian || has_browser ||
		echo "note: only Debian's Chromium is installed by itself: tests of pages need one, and do not run"
	packages=$(missing_test_packages | tr '\n' ' ')
	[ -n "$packages" ] || return 0
	if ! has apt-get || [ "$(id -u)" != 0 ]; then
		echo "note: tests that need these packages do not run: $packages"
		return 0
	fi
	# shellcheck disable=SC2086 # one word per package
	install $packages
}

# NVIDIA's own driver library is not installed, but put aside: Debian has it among packages that not
# every machine looks for.
fetch_libcuda() {
	folder=$PWD/.output/tests/libcuda
	if ! is_debian || [ -e "$folder/libcuda.so.1" ]; then
		return 0
	fi
	work=$(mktemp -d)
	if ! (
		set -e
		uri=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m 1 '/debian/*$')
		codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
		echo "deb $uri $codename non-free" >"$work/sources.list"
		mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$folder"
		cd "$work"
		for verb in update "download libcuda1"; do
			# shellcheck disable=SC2086 # a verb and its argument
			apt-get -q -q -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=- \
				-o Dir::State::lists="$work/lists" -o Dir::Cache="$work/cache" \
				-o APT::Sandbox::User="$(id -un)" $verb
		done
		dpkg-deb -x libcuda1_*.deb files
		mv "$(find files -name 'libcuda.so.*.*')" "$folder/libcuda.so.1"
	) >"$work/log" 2>&1; then
		echo "note: libcuda1 of Debian's non-free packages is not to be had: tests that need it do not run"
		tail -n 3 "$work/log"
	fi
	rm -r "$work"
}

install() {
	echo "setup: installing $*"
	# A fresh machine has no package lists, an old one has lists of files that are gone.
	if ! apt_install "$@"; then
		apt-get -q update
		apt_install "$@"
	fi
}

apt_install() {
	DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends "$@"
}

make_venv() {
	python=$(find_python)
	if [ -z "$python" ]; then
		echo "setup: Python 3.11 or newer with venv and ensurepip is needed; PYTHON can name it" >&2
		exit 1
	fi
	# A venv whose interpreter has gone or whose folder has moved cannot be repaired.
	if ! .venv/bin/python -c 'import pip' 2>/dev/null ||
		! .venv/bin/pip --version >/dev/null 2>&1; then
		"$python" -m venv --clear .venv
	fi
	pip="env PIP_DISABLE_PIP_VERSION_CHECK=1 .venv/bin/pip"
	$pip install --quiet --requirement requirements-dev.lock
	$pip install --quiet --no-deps --no-build-isolation --editable .
	.venv/bin/otel-gpu --version
}

case "${1:-}" in
system) install_system ;;
venv) make_venv ;;
tests)
	install_for_tests
	fetch_libcuda
	;;
*)
	echo "usage: tools/setup.sh system|venv|tests" >&2
	exit 2
	;;
esac
