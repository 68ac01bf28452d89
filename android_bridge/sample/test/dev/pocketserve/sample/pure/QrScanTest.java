package dev.pocketserve.sample.pure;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNull;

import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import org.junit.Test;

/** Reads QR codes from frames: width, height, row stride (four bytes each, big-endian), then the brightness. */
public class QrScanTest {
    private final QrScan scan = new QrScan();

    private QrScan.State offer(String name) throws IOException {
        ByteBuffer frame = ByteBuffer.wrap(FileBytes.of(new File(System.getProperty("pocketserve.frames"), name)));
        int width = frame.getInt();
        int height = frame.getInt();
        int stride = frame.getInt();
        return scan.offer(frame, stride, width, height);
    }

    private void reads(String name) throws IOException {
        assertEquals(name, QrScan.State.FOUND, offer(name));
        assertEquals(System.getProperty("pocketserve.token"), scan.token().token);
        assertEquals(18_470, scan.token().httpPort);
        assertEquals(18_471, scan.token().socketPort);
    }

    @Test
    public void theServersOwnCode() throws IOException {
        reads("plain");
    }

    @Test
    public void lightOnDark() throws IOException {
        reads("inverted");
    }

    @Test
    public void turnedAndWithGapsBetweenRows() throws IOException {
        reads("turned");
    }

    @Test
    public void rotatedBlurredAndNoisyCodesAreRead() throws IOException {
        reads("photo");
    }

    @Test
    public void anEmptyFrameThenAForeignCodeThenTheRightOne() throws IOException {
        assertEquals(QrScan.State.LOOKING, offer("empty"));
        assertNull(scan.token());
        assertEquals(QrScan.State.FOREIGN, offer("foreign"));
        assertNull(scan.token());
        assertEquals("kept until there is a better one", QrScan.State.FOREIGN, offer("empty"));
        reads("plain");
        assertEquals("later frames are passed over", QrScan.State.FOUND, offer("foreign"));
    }

    @Test
    public void aFrameThatIsTooShortIsIgnored() {
        assertEquals(QrScan.State.LOOKING, scan.offer(ByteBuffer.allocate(99), 10, 10, 10));
        assertEquals(QrScan.State.LOOKING, scan.offer(ByteBuffer.allocate(99), 5, 10, 10));
    }
}
