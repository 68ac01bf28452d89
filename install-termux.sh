#!/data/data/com.termux/files/usr/bin/sh
# Installs Pocketserve in Termux, or repairs it after an upgrade of Python. Run it in the clone: sh install-termux.sh
#
#   --boot      also start the server when the phone starts (needs the Termux:Boot app)
#   --service   also make it a service of termux-services
#   --onnx, --torch   also install that runtime
#
# Nothing is compiled: what is not plain Python comes from Termux's own packages.
set -eu

say() { printf '%s\n' "$*"; }
fail() { printf 'install-termux: %s\n' "$*" >&2; exit 1; }

boot=no service=no
packages="python python-pip python-numpy python-pillow python-tflite-runtime"
for option in "$@"; do
    case $option in
        --boot) boot=yes ;;
        --service) service=yes ;;
        --onnx) packages="$packages python-onnxruntime" ;;
        --torch) packages="$packages python-torch" ;;
        *) say "usage: sh install-termux.sh [--boot] [--service] [--onnx] [--torch]" >&2; exit 2 ;;
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
python -m pip install --disable-pip-version-check --only-binary numpy,pillow "$clone[qr]"

if [ "$boot" = yes ]; then
    mkdir -p "$HOME/.termux/boot"
    cp "$clone/termux/boot/pocketserve" "$HOME/.termux/boot/pocketserve"
    chmod 700 "$HOME/.termux/boot/pocketserve"
    say "the server starts with the phone, once you have opened the Termux:Boot app"
fi

if [ "$service" = yes ]; then
    pkg install -y termux-services
    target=$PREFIX/var/service/pocketserve
    mkdir -p "$target/log"
    [ -e "$target/run" ] || touch "$target/down"  # sv-enable decides when it starts
    cp "$clone/termux/service/pocketserve/run" "$target/run"
    chmod 700 "$target/run"
    ln -sf "$PREFIX/share/termux-services/svlogger" "$target/log/run"
    say "close Termux and open it again, then: sv-enable pocketserve"
fi

say
pocketserve doctor || say "the lines marked PROBLEM say what to do; what remains works"
