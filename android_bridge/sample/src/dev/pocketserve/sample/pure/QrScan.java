package dev.pocketserve.sample.pure;

import com.google.zxing.BinaryBitmap;
import com.google.zxing.DecodeHintType;
import com.google.zxing.LuminanceSource;
import com.google.zxing.PlanarYUVLuminanceSource;
import com.google.zxing.ReaderException;
import com.google.zxing.common.HybridBinarizer;
import com.google.zxing.qrcode.QRCodeReader;
import java.nio.ByteBuffer;
import java.util.Collections;
import java.util.Map;

/**
 * Looks for the QR code of {@code pocketserve token --qr} on camera frames. Not thread-safe. Frames after a found token
 * are ignored.
 */
public final class QrScan {
    private static final Map<DecodeHintType, ?> THOROUGH =
            Collections.singletonMap(DecodeHintType.TRY_HARDER, Boolean.TRUE);

    private final QRCodeReader reader = new QRCodeReader();
    private State state = State.LOOKING;
    private TokenText token;

    /** The result so far. */
    public enum State {
        /** No code yet. */
        LOOKING,
        /** A code with other contents. */
        FOREIGN,
        /** The code of a server. */
        FOUND
    }

    /**
     * Scans a frame.
     *
     * @param luma brightness of each pixel, from the buffer's position; not changed
     * @param rowStride bytes from one row to the next
     * @return the result so far
     */
    public State offer(ByteBuffer luma, int rowStride, int width, int height) {
        long used = (long) rowStride * (height - 1) + width; // the last row may end there
        if (state == State.FOUND || rowStride < width || luma.remaining() < used) {
            return state;
        }
        byte[] rows = new byte[rowStride * height];
        luma.duplicate().get(rows, 0, Math.min(rows.length, luma.remaining()));
        LuminanceSource source = new PlanarYUVLuminanceSource(rows, rowStride, height, 0, 0, width, height, false);
        String text = decode(source);
        text = text == null ? decode(source.invert()) : text; // light on dark, as in terminals
        if (text != null) {
            token = TokenText.fromAddress(text);
            state = token == null ? State.FOREIGN : State.FOUND;
        }
        return state;
    }

    private String decode(LuminanceSource source) {
        try {
            return reader.decode(new BinaryBitmap(new HybridBinarizer(source)), THOROUGH).getText();
        } catch (ReaderException none) {
            return null;
        } catch (IllegalArgumentException | ArrayIndexOutOfBoundsException damaged) {
            return null; // the decoder's own errors must not crash the app
        }
    }

    /** Returns the token and ports of the code; null until the state is FOUND. */
    public TokenText token() {
        return token;
    }
}
