# A package for Termux, in the format of termux-packages. The wheels of `make release` lie beside this file.
TERMUX_PKG_HOMEPAGE=${POCKETSERVE_HOMEPAGE:?name the https address where Pocketserve is published}
TERMUX_PKG_DESCRIPTION="Serve machine-learning models on the phone itself"
TERMUX_PKG_LICENSE="Apache-2.0"
TERMUX_PKG_MAINTAINER="The Pocketserve authors"
TERMUX_PKG_VERSION="0.1.0"
TERMUX_PKG_SKIP_SRC_EXTRACT=true
TERMUX_PKG_SETUP_PYTHON=true
TERMUX_PKG_PLATFORM_INDEPENDENT=true
# What pip would have to compile. All other requirements stand in the wheels, and are installed with the package.
TERMUX_PKG_DEPENDS="python, python-pip, python-numpy, python-pillow, python-tflite-runtime"
TERMUX_PKG_SUGGESTS="python-onnxruntime, python-torch, termux-api, termux-services"

termux_step_make_install() {
	local name wheel
	for name in pocketserve_client pocketserve pocketserve_lab; do
		wheel="$TERMUX_PKG_BUILDER_DIR/$name-$TERMUX_PKG_VERSION-py3-none-any.whl"
		[[ -f "$wheel" ]] || termux_error_exit "copy the wheel of 'make release' to $wheel"
		pip install --no-deps --prefix="$TERMUX_PREFIX" "$wheel"
	done
}
