package dev.pocketserve.bridge.ktx

import dev.pocketserve.bridge.Nv21
import dev.pocketserve.bridge.PredictOptions
import java.nio.ByteBuffer

private const val RGBA_BYTES = 4

/**
 * A picture for a model: encoded, or raw pixels with their description.
 *
 * @property bytes must not change before the answer
 * @property format `nv21` or `rgba`; null for an encoded picture
 * @property width pixels; 0 for an encoded picture
 * @property height pixels; 0 for an encoded picture
 * @property rotation degrees clockwise that turn the picture upright: 0, 90, 180 or 270
 */
public class Frame private constructor(
    public val bytes: ByteArray,
    public val format: String?,
    public val width: Int,
    public val height: Int,
    public val rotation: Int
) {
    internal fun describe(options: PredictOptions?): PredictOptions? {
        if (format == null) return options
        val own = if (options == null) PredictOptions() else PredictOptions(options)
        return own.frame(format, width, height, rotation)
    }

    public companion object {
        /** Returns a frame of an encoded picture, such as a JPEG or PNG. */
        public fun encoded(picture: ByteArray): Frame = Frame(picture, null, 0, 0, 0)

        /**
         * Returns a frame of packed NV21, as from Android's first camera API.
         *
         * @param bytes exactly [Nv21.size] of them
         * @param rotation degrees clockwise that turn the picture upright
         */
        public fun nv21(bytes: ByteArray, width: Int, height: Int, rotation: Int = 0): Frame {
            val size = Nv21.size(width, height)
            require(bytes.size == size) { "NV21 of $width x $height pixels has $size bytes, not ${bytes.size}" }
            return raw("nv21", bytes, width, height, rotation)
        }

        /**
         * Copies a frame of three planes, such as `YUV_420_888` of Android's `Image` or CameraX's `ImageProxy`. Buffers
         * are read from their positions and not changed; you may close the image immediately.
         *
         * @param yRowStride bytes from one row of Y to the next
         * @param uvRowStride bytes from one row of U, or V, to the next
         * @param uvPixelStride bytes from one value of U, or V, to the next
         * @param rotation degrees clockwise that turn the picture upright
         * @throws IllegalArgumentException if a plane has fewer bytes than its strides require
         */
        public fun yuv(
            y: ByteBuffer,
            yRowStride: Int,
            u: ByteBuffer,
            v: ByteBuffer,
            uvRowStride: Int,
            uvPixelStride: Int,
            width: Int,
            height: Int,
            rotation: Int = 0
        ): Frame {
            val packed = Nv21.pack(y, yRowStride, u, v, uvRowStride, uvPixelStride, width, height)
            return raw("nv21", packed, width, height, rotation)
        }

        /**
         * Copies a frame of red, green, blue and alpha, one byte each, such as a bitmap's or CameraX's `RGBA_8888`.
         *
         * @param pixels read from its position and not changed
         * @param rowStride bytes from one row to the next
         * @param rotation degrees clockwise that turn the picture upright
         * @throws IllegalArgumentException if there are fewer bytes than the stride requires
         */
        public fun rgba(pixels: ByteBuffer, rowStride: Int, width: Int, height: Int, rotation: Int = 0): Frame {
            require(width > 0 && height > 0) { "a frame of $width x $height pixels has none" }
            val row = RGBA_BYTES.toLong() * width
            val needed = rowStride.toLong() * (height - 1) + row
            require(row * height <= Int.MAX_VALUE && rowStride >= row && pixels.remaining() >= needed) {
                "${pixels.remaining()} bytes are too few for $height rows of $row bytes with a stride of $rowStride"
            }
            val packed = ByteArray((row * height).toInt())
            val source = pixels.duplicate()
            for (number in 0 until height) {
                source.position(pixels.position() + number * rowStride)
                source.get(packed, number * row.toInt(), row.toInt())
            }
            return raw("rgba", packed, width, height, rotation)
        }

        private fun raw(format: String, bytes: ByteArray, width: Int, height: Int, rotation: Int): Frame {
            require(rotation in 0..270 && rotation % 90 == 0) { "a rotation must be 0, 90, 180 or 270, not $rotation" }
            return Frame(bytes, format, width, height, rotation)
        }
    }
}
