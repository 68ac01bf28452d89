#!/data/data/com.termux/files/usr/bin/sh
# Installs Pocketserve in Termux, or repairs it after an upgrade of Python. Run it in the clone: sh install-termux.sh
#
#   --onnx, --torch   also install that runtime
#
# Nothing is compiled: what is not plain Python comes from Termux's own packages.
set -eu

say() { printf '%s\n' "$*"; }
fail() { printf 'install-termux: %s\n' "$*" >&2; exit 1; }

packages="python python-pip python-numpy python-pillow python-tflite-runtime"
for option in "$@"; do
    case $option in
        --onnx) packages="$packages python-onnxruntime" ;;
        --torch) packages="$packages python-torch" ;;
        *) say "usage: sh install-termux.sh [--onnx] [--torch]" >&2; exit 2 ;;
    esac
done

clone=$(cd "$(dirname "$0")" && pwd)
[ -f "$clone/pyproject.toml" ] || fail "pyproject.toml is not beside this script; run the one in the clone"
case ${PREFIX:-} in
    */com.termux/files/usr) ;;
    *) fail "this is not Termux (PREFIX is '${PREFIX:-}'); in another Linux run: make demo" ;;
esac
[ "$(id -u)" != 0 ] || [ -n "${POCKETSERVE_ALLOW_ROOT:-}" ] || fail "do not run this as root; leave su and try again"
case ${TERMUX_APK_RELEASE:-}${TERMUX_VERSION:-} in
    *GOOGLE_PLAY*|*googleplay*) say "note: other apps cannot start programs in Google Play's Termux; see docs/termux.md" ;;
esac

# shellcheck disable=SC2086  # one word for each package
pkg install -y $packages

# numpy and pillow must be those of Termux: pip would try to compile them.
python -m pip install --disable-pip-version-check --only-binary numpy,pillow "$clone/client" "$clone[qr]" "$clone/lab"

say
pocketserve doctor || say "the lines marked PROBLEM say what to do; what remains works"
