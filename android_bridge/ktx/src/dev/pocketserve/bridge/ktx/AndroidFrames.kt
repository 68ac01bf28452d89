package dev.pocketserve.bridge.ktx

import android.graphics.Bitmap
import android.media.Image
import java.nio.ByteBuffer

/**
 * Copies a bitmap of any configuration, hardware bitmaps included.
 *
 * @param rotation degrees clockwise that turn the picture upright
 */
public fun Bitmap.toFrame(rotation: Int = 0): Frame {
    if (config != Bitmap.Config.ARGB_8888) {
        val copied = requireNotNull(copy(Bitmap.Config.ARGB_8888, false)) { "the bitmap cannot be copied" }
        return try {
            copied.toFrame(rotation)
        } finally {
            copied.recycle()
        }
    }
    // In this configuration, the bytes are red, green, blue, alpha.
    val pixels = ByteBuffer.allocate(rowBytes * height)
    copyPixelsToBuffer(pixels)
    pixels.rewind()
    return Frame.rgba(pixels, rowBytes, width, height, rotation)
}

/**
 * Copies an image of the format `YUV_420_888`, as an `ImageReader` returns it; close it afterwards.
 *
 * @param rotation degrees clockwise that turn the picture upright
 */
public fun Image.toFrame(rotation: Int = 0): Frame {
    val (y, u, v) = planes
    return Frame.yuv(
        y.buffer, y.rowStride, u.buffer, v.buffer, u.rowStride, u.pixelStride, width, height, rotation
    )
}
