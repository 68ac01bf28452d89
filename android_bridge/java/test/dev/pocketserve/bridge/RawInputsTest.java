package dev.pocketserve.bridge;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.fail;

import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import org.json.JSONArray;
import org.json.JSONObject;
import org.junit.Test;

/** The requests of generated classes, and their checks of shapes. */
public class RawInputsTest {
    private static String text(byte[] json) {
        return new String(json, Request.UTF_8);
    }

    @Test
    public void rowsMayHaveTextsAndNaN() {
        List<Object[]> rows = Arrays.asList(new Object[] {1.5, "a\"b"}, new Object[] {Double.NaN, 7L});
        assertEquals("[[1.5,\"a\\\"b\"],[NaN,7]]", text(RawInputs.rows(rows)));
        assertEquals("[[]]", text(RawInputs.rows(Collections.singletonList(new Object[0]))));
        assertEquals("[]", text(RawInputs.rows(Collections.<Object[]>emptyList())));
    }

    @Test
    public void textsArriveUnchanged() throws Exception {
        String odd = "\u03c3 \"quoted\" \\ \n \u2028 </script>";
        assertEquals(odd, new JSONArray(text(RawInputs.texts(Arrays.asList("a", odd)))).getString(1));
        JSONObject question = new JSONObject(text(RawInputs.question(odd, "b")));
        assertEquals(odd, question.getString("question"));
        JSONObject comparison = new JSONObject(text(RawInputs.comparison(odd, Arrays.asList("x", "y"))));
        assertEquals(odd + "xy", comparison.getString("query") + comparison.getJSONArray("texts").join("")
                .replace("\"", ""));
        try {
            RawInputs.texts(Arrays.asList("a", null));
            fail("a null was taken");
        } catch (IllegalArgumentException error) {
            assertEquals("a text must not be null", error.getMessage());
        }
    }

    @Test
    public void itemsAndSamples() {
        assertEquals("{\"items\":[3,4]}", text(RawInputs.items(new int[] {3, 4}, null)));
        assertEquals("{\"items\":[],\"user\":5}", text(RawInputs.items(new int[0], 5)));
        assertArrayEquals(new byte[] {1, 0, -1, -1}, RawInputs.samples(new short[] {1, -1}));
    }

    @Test
    public void shapesAreFilledOrRejected() {
        TensorShape batch = new TensorShape("x", -1, 2, 3);
        assertArrayEquals(new long[] {4, 2, 3}, batch.forElements(24));
        assertArrayEquals(new long[] {0, 2, 3}, batch.forElements(0));
        assertArrayEquals(new long[0], new TensorShape("single").forElements(1));
        assertArrayEquals(new long[] {2, 2}, new TensorShape("free", -1, -1).check(4, 2, 2));
        assertRejected("7 elements", () -> batch.forElements(7));
        assertRejected("several free dimensions", () -> new TensorShape("x", -1, -1).forElements(4));
        assertRejected("[2, 3]", () -> batch.check(6, 2, 3));
        assertRejected("[1, 2, 3]", () -> batch.check(7, 1, 2, 3));
        assertRejected("too large", () -> new TensorShape("x", -1, -1).check(1, Integer.MAX_VALUE, Integer.MAX_VALUE));
    }

    private static void assertRejected(String part, Runnable work) {
        try {
            work.run();
        } catch (IllegalArgumentException error) {
            assertEquals(error.getMessage(), true, error.getMessage().contains(part));
            return;
        }
        fail("it was taken, but " + part);
    }
}
