package dev.pocketserve.sample;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNotNull;
import static org.junit.Assert.assertNull;

import org.junit.Test;

/** Checks the parts of the app that need no Android. */
public class PureTest {
    private static final String TOKEN = "nZ3b1T6ElN3GZP0oWqXq1l7x8vJ0r4c2mYk5sD9aF-_";

    @Test
    public void aTokenOrTheTextOfAQrCode() {
        assertEquals(TOKEN, TokenText.read(" " + TOKEN + "\n").token);
        TokenText read = TokenText.read("pocketserve://pair?http=9470&socket=9471&token=" + TOKEN + "&later=1");
        assertEquals(TOKEN, read.token);
        assertEquals(9470, read.httpPort);
        assertEquals(9471, read.socketPort);
        assertEquals(0, TokenText.read("pocketserve://pair?token=" + TOKEN).socketPort);
    }

    @Test
    public void anythingElseIsNoToken() {
        StringBuilder large = new StringBuilder("pocketserve://pair?token=" + TOKEN);
        while (large.length() <= TokenText.MAX_LENGTH) {
            large.append("&x=1");
        }
        String[] texts = {null, "", "short", TOKEN + "!", "http://pair?token=" + TOKEN, "pocketserve://pair?http=1",
            "pocketserve://pair?http=0&token=" + TOKEN, "pocketserve://pair?socket=65536&token=" + TOKEN,
            "pocketserve://pair?http=-1&token=" + TOKEN, "pocketserve://pair?token=%zz", "pocketserve://pair?",
            large.toString()};
        for (String text : texts) {
            assertNull(text, TokenText.read(text));
        }
    }

    @Test
    public void picturesAreTurnedUpright() {
        assertEquals(90, Geometry.upright(90, 0, false));
        assertEquals(0, Geometry.upright(90, 90, false));
        assertEquals(180, Geometry.upright(90, 270, false));
        assertEquals(270, Geometry.upright(270, 0, true));
        assertEquals(0, Geometry.upright(270, 90, true));
    }

    @Test
    public void boxesAreMappedToTheView() {
        Geometry fitted = Geometry.fitted(200, 100, 400, 400);
        assertEquals(2, fitted.scale, 0);
        assertEquals(0, fitted.left, 0);
        assertEquals(100, fitted.top, 0);
        Geometry filling = Geometry.filling(200, 100, 400, 400);
        assertEquals(4, filling.scale, 0);
        assertEquals(-200, filling.left, 0);
        assertEquals(0, filling.top, 0);
    }

    @Test
    public void orientationGoesBehindTheFirstMarker() {
        byte[] jpeg = {(byte) 0xff, (byte) 0xd8, (byte) 0xff, (byte) 0xd9};
        byte[] marked = ExifOrientation.mark(jpeg, 90);
        assertNotNull(marked);
        assertEquals(jpeg.length + 36, marked.length);
        assertEquals((byte) 0xe1, marked[3]);
        assertEquals(34, marked[5]);
        assertEquals(6, marked[31]);
        assertEquals((byte) 0xd9, marked[marked.length - 1]);
    }
}
