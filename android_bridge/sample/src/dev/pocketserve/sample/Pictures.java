package dev.pocketserve.sample;

import android.content.ContentResolver;
import android.graphics.Bitmap;
import android.graphics.BitmapFactory;
import android.graphics.Matrix;
import android.media.ExifInterface;
import android.net.Uri;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;

/** A picture as sent, and as shown. */
final class Pictures {
    /** Larger files are rejected before they fill the memory. */
    static final int MAX_MEGABYTES = 32;
    private static final int SHOWN_LONG_SIDE = 1600;

    final byte[] encoded;
    final Bitmap preview;
    /** Pixels of the upright picture, to which boxes refer. */
    final int width;
    final int height;

    private Pictures(byte[] encoded, Bitmap preview, int width, int height) {
        this.encoded = encoded;
        this.preview = preview;
        this.width = width;
        this.height = height;
    }

    /** The file was larger than MAX_MEGABYTES. */
    static final class TooLargeException extends IOException {
        private static final long serialVersionUID = 1L;
    }

    /**
     * Reads the result of a picture picker.
     *
     * @throws IOException if it can't be read or is too large
     */
    static byte[] read(ContentResolver resolver, Uri address) throws IOException {
        try (InputStream stream = resolver.openInputStream(address)) {
            if (stream == null) {
                throw new IOException("nothing there");
            }
            return read(stream, MAX_MEGABYTES << 20);
        }
    }

    /**
     * Reads a stream to its end.
     *
     * @throws TooLargeException if it exceeds the limit
     */
    static byte[] read(InputStream stream, int limit) throws IOException {
        ByteArrayOutputStream read = new ByteArrayOutputStream();
        byte[] chunk = new byte[16_384];
        for (int count = stream.read(chunk); count >= 0; count = stream.read(chunk)) {
            if (read.size() + count > limit) {
                throw new TooLargeException();
            }
            read.write(chunk, 0, count);
        }
        return read.toByteArray();
    }

    /**
     * Decodes a picture upright, scaled down for the screen.
     *
     * @param folder for a temporary file, because Android 6 reads EXIF data from files only
     * @throws IOException if it is not a picture
     */
    static Pictures decode(byte[] encoded, File folder) throws IOException {
        BitmapFactory.Options options = new BitmapFactory.Options();
        options.inJustDecodeBounds = true;
        BitmapFactory.decodeByteArray(encoded, 0, encoded.length, options);
        int longSide = Math.max(options.outWidth, options.outHeight);
        if (longSide <= 0) {
            throw new IOException("no picture");
        }
        int width = options.outWidth;
        int height = options.outHeight;
        options.inJustDecodeBounds = false;
        options.inSampleSize = Math.max(1, Integer.highestOneBit(Math.max(1, longSide / SHOWN_LONG_SIDE)));
        Bitmap decoded = BitmapFactory.decodeByteArray(encoded, 0, encoded.length, options);
        if (decoded == null) {
            throw new IOException("no picture");
        }
        Matrix upright = upright(encoded, folder);
        if (!upright.isIdentity()) {
            decoded = Bitmap.createBitmap(decoded, 0, 0, decoded.getWidth(), decoded.getHeight(), upright, true);
        }
        float[] corner = {1, 0};
        upright.mapVectors(corner);
        boolean sideways = Math.abs(corner[0]) < 0.5f;
        return new Pictures(encoded, decoded, sideways ? height : width, sideways ? width : height);
    }

    private static Matrix upright(byte[] encoded, File folder) throws IOException {
        File file = File.createTempFile("picture", null, folder);
        try {
            try (FileOutputStream stream = new FileOutputStream(file)) {
                stream.write(encoded);
            }
            int orientation = new ExifInterface(file.getPath()).getAttributeInt(ExifInterface.TAG_ORIENTATION, 1);
            return matrix(orientation);
        } finally {
            if (!file.delete()) {
                file.deleteOnExit();
            }
        }
    }

    /** The eight values of EXIF's orientation. */
    private static Matrix matrix(int orientation) {
        Matrix matrix = new Matrix();
        boolean mirrored = orientation == 2 || orientation == 4 || orientation == 5 || orientation == 7;
        int degrees = orientation == 3 || orientation == 4 ? 180
                : orientation == 5 || orientation == 8 ? 270
                : orientation == 6 || orientation == 7 ? 90 : 0;
        if (mirrored) {
            matrix.postScale(-1, 1);
        }
        matrix.postRotate(degrees);
        return matrix;
    }
}
