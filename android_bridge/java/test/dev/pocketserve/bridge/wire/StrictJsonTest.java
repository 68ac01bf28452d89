package dev.pocketserve.bridge.wire;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.fail;

import java.nio.charset.Charset;
import java.util.Map;
import org.junit.Test;

/** JSON from unauthenticated peers. */
public class StrictJsonTest {
    private static final Charset UTF_8 = Charset.forName("UTF-8");

    @Test
    public void goodDocumentsAreRead() {
        Map<String, Object> read = StrictJson.object((" {\"a\" : [1, -2.5, 1e3, true, false, null, {}, []],\n"
                + "\"b\":\"\\u00e4\\n\\\"ü\", \"c\":999999999999999999, \"\":0}\t").getBytes(UTF_8));
        assertEquals("[1, -2.5, 1000.0, true, false, null, {}, []]", read.get("a").toString());
        assertEquals("ä\n\"ü", read.get("b"));
        assertEquals(999_999_999_999_999_999L, read.get("c"));
        assertEquals(0L, read.get(""));
        assertNull(read.get("d"));
    }

    @Test
    public void badDocumentsAreRejected() {
        String deep = new String(new char[5000]).replace("\0", "[");
        String[] bad = {
            "", " ", "[]", "1", "{", "{}x", "{}{}", "{a:1}", "{'a':1}", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{,}",
            "{\"a\":1,\"a\":2}", "{\"a\":01}", "{\"a\":+1}", "{\"a\":.5}", "{\"a\":1.}", "{\"a\":1e}", "{\"a\":-}",
            "{\"a\":NaN}", "{\"a\":tru}", "{\"a\":\"\n\"}", "{\"a\":\"\\x\"}", "{\"a\":\"\\u12\"}", "{\"a\":\"", "{\"a\":\"\\",
            "{\"a\":[1 2]}", "{\"a\":[1,]}", "\ufeff{}", "{}\0", "{\"a\":" + deep, "{\"a\":1 /* */}", "{\"a\"\0:1}",
        };
        for (String document : bad) {
            refuse(document.getBytes(UTF_8), document);
        }
        refuse(new byte[] {'{', '"', (byte) 0xff, '"', ':', '1', '}'}, "no UTF-8");
        refuse(new byte[] {'{', '"', (byte) 0xed, (byte) 0xa0, (byte) 0x80, '"', ':', '1', '}'}, "half a surrogate");
    }

    private static void refuse(byte[] document, String name) {
        try {
            StrictJson.object(document);
        } catch (IllegalArgumentException expected) {
            return;
        }
        fail("taken: " + name);
    }
}
