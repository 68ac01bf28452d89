package dev.pocketserve.sample.pure;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNull;

import org.junit.Test;

/** Checks typed, pasted and scanned texts. */
public class TokenTextTest {
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
    public void otherTextsAreNotTokens() {
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
    public void aQrCodeHasAnAddressNotABareToken() {
        assertEquals(TOKEN, TokenText.fromAddress("pocketserve://pair?token=" + TOKEN).token);
        assertNull(TokenText.fromAddress(TOKEN));
        assertNull(TokenText.fromAddress("https://example.org/?token=" + TOKEN));
    }

    @Test
    public void aCodeIsTypedInAnyWay() {
        assertEquals("0123456789", PairingCode.digits("01234 567-89"));
        assertEquals("012345", PairingCode.digits("012 345"));
        for (String typed : new String[] {"", "01234567", "01234567890", "0123a56789", "٠١٢٣٤٥٦٧٨٩"}) {
            assertNull(typed, PairingCode.digits(typed));
        }
    }
}
