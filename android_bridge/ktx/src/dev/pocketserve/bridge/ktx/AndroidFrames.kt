package dev.pocketserve.bridge.ktx

import android.graphics.Bitmap
import android.media.Image
import java.nio.ByteBuffer

/**
 * Copies a bitmap of any configuration, also one that lies in the memory of the graphics processor.
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
    // Of this configuration, memory holds red, green, blue and alpha in this order.
    val pixels = ByteBuffer.allocate(rowBytes * height)
    copyPixelsToBuffer(pixels)
    pixels.rewind()
    return Frame.rgba(pixels, rowBytes, width, height, rotation)
}

/**
 * Copies an image of the format `YUV_420_888`, as an `ImageReader` gives it; close it afterwards.
 *
 * @param rotation degrees clockwise that turn the picture upright
 */
public fun Image.toFrame(rotation: Int = 0): Frame {
    val (y, u, v) = planes
    return Frame.yuv(
        y.buffer, y.rowStride, u.buffer, v.buffer, u.rowStride, u.pixelStride, width, height, rotation
    )
}
