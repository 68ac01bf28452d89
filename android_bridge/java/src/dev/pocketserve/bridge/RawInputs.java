package dev.pocketserve.bridge;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.List;
import org.json.JSONObject;

/** Encodes inputs of the server's tasks as JSON, without org.json, which rejects NaN and infinities. */
final class RawInputs {
    private RawInputs() {
    }

    static byte[] samples(short[] samples) {
        ByteBuffer bytes = ByteBuffer.allocate(2 * samples.length).order(ByteOrder.LITTLE_ENDIAN);
        bytes.asShortBuffer().put(samples);
        return bytes.array();
    }

    static byte[] texts(List<String> texts) {
        return bytes(array(texts));
    }

    static byte[] question(String question, String context) {
        return bytes("{\"question\":" + quoted(question) + ",\"context\":" + quoted(context) + "}");
    }

    static byte[] comparison(String query, List<String> texts) {
        return bytes("{\"query\":" + quoted(query) + ",\"texts\":" + array(texts) + "}");
    }

    static byte[] rows(List<Object[]> rows) {
        StringBuilder json = new StringBuilder("[");
        for (Object[] row : rows) {
            json.append(json.length() == 1 ? "[" : ",[");
            for (int i = 0; i < row.length; i++) {
                json.append(i == 0 ? "" : ",").append(value(row[i]));
            }
            json.append(']');
        }
        return bytes(json.append(']').toString());
    }

    static byte[] items(int[] items, Integer user) {
        StringBuilder json = new StringBuilder("{\"items\":[");
        for (int i = 0; i < items.length; i++) {
            json.append(i == 0 ? "" : ",").append(items[i]);
        }
        return bytes(json.append(']').append(user == null ? "}" : ",\"user\":" + user + "}").toString());
    }

    private static String array(List<String> texts) {
        StringBuilder json = new StringBuilder("[");
        for (String text : texts) {
            json.append(json.length() == 1 ? "" : ",").append(quoted(text));
        }
        return json.append(']').toString();
    }

    /** Appends a text, or a number including NaN and Infinity, which the server accepts. */
    private static String value(Object value) {
        return value instanceof String ? quoted((String) value) : String.valueOf(value);
    }

    private static String quoted(String text) {
        if (text == null) {
            throw new IllegalArgumentException("a text must not be null");
        }
        return JSONObject.quote(text);
    }

    private static byte[] bytes(String json) {
        return json.getBytes(Request.UTF_8);
    }
}
