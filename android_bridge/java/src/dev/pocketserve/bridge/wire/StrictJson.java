package dev.pocketserve.bridge.wire;

import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.Charset;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Parses the JSON of the handshake strictly: UTF-8, no duplicate keys. The platform's {@code org.json} accepts single
 * quotes, comments and duplicate keys, so it is not used for data of an unauthenticated peer.
 *
 * <p>Values become {@code Map<String, Object>}, {@code List<Object>}, String, Long (or Double), Boolean and null.
 */
public final class StrictJson {
    private static final int MAX_DEPTH = 100;

    private final String text;
    private int at;

    private StrictJson(String text) {
        this.text = text;
    }

    /** Parses a document that must be an object.
     *
     * @param document UTF-8
     * @return the members in their order
     * @throws IllegalArgumentException if it is anything else
     */
    public static Map<String, Object> object(byte[] document) {
        String text;
        try {
            // A new decoder reports invalid UTF-8, which new String() would replace.
            text = Charset.forName("UTF-8").newDecoder().decode(ByteBuffer.wrap(document)).toString();
        } catch (CharacterCodingException error) {
            throw new IllegalArgumentException("it is not UTF-8", error);
        }
        StrictJson reader = new StrictJson(text);
        reader.space();
        if (reader.peek() != '{') {
            throw reader.wrong("an object was expected");
        }
        Map<String, Object> members = reader.members(0);
        reader.space();
        if (reader.at != text.length()) {
            throw reader.wrong("text follows the document");
        }
        return members;
    }

    private Object value(int depth) {
        if (depth > MAX_DEPTH) {
            throw wrong("it is nested too deeply");
        }
        space();
        switch (peek()) {
            case '{': return members(depth);
            case '[': return items(depth);
            case '"': return string();
            case 't': return word("true", Boolean.TRUE);
            case 'f': return word("false", Boolean.FALSE);
            case 'n': return word("null", null);
            default: return number();
        }
    }

    private Map<String, Object> members(int depth) {
        Map<String, Object> result = new LinkedHashMap<>();
        at++;
        space();
        if (peek() == '}') {
            at++;
            return result;
        }
        while (true) {
            space();
            String name = string();
            expect(':');
            Object value = value(depth + 1);
            if (result.containsKey(name)) {
                throw wrong("a key is repeated");
            }
            result.put(name, value);
            if (!another('}')) {
                return result;
            }
        }
    }

    private List<Object> items(int depth) {
        List<Object> result = new ArrayList<>();
        at++;
        space();
        if (peek() == ']') {
            at++;
            return result;
        }
        do {
            result.add(value(depth + 1));
        } while (another(']'));
        return result;
    }

    private boolean another(char end) {
        space();
        char next = peek();
        if (next != ',' && next != end) {
            throw wrong("',' or '" + end + "' was expected");
        }
        at++;
        return next == ',';
    }

    private void expect(char expected) {
        space();
        if (peek() != expected) {
            throw wrong("'" + expected + "' was expected");
        }
        at++;
    }

    private Object word(String word, Object value) {
        if (!text.startsWith(word, at)) {
            throw wrong("no JSON value");
        }
        at += word.length();
        return value;
    }

    private Object number() {
        int start = at;
        if (peek() == '-') {
            at++;
        }
        int first = at;
        digits();
        if (at - first > 1 && text.charAt(first) == '0') {
            throw wrong("a number starts with 0");
        }
        boolean whole = true;
        if (peek() == '.') {
            whole = false;
            at++;
            digits();
        }
        if (peek() == 'e' || peek() == 'E') {
            whole = false;
            at++;
            if (peek() == '+' || peek() == '-') {
                at++;
            }
            digits();
        }
        String digits = text.substring(start, at);
        if (whole && digits.length() <= 18) {
            return Long.valueOf(digits);
        }
        return Double.valueOf(digits);
    }

    private void digits() {
        int start = at;
        while (peek() >= '0' && peek() <= '9') {
            at++;
        }
        if (at == start) {
            throw wrong("no JSON value");
        }
    }

    private String string() {
        if (peek() != '"') {
            throw wrong("a string was expected");
        }
        at++;
        StringBuilder read = new StringBuilder();
        while (peek() != '"') {
            if (at >= text.length()) {
                throw wrong("a string is not terminated");
            }
            char next = text.charAt(at++);
            if (next < 0x20) {
                throw wrong("a control character in a string");
            }
            read.append(next == '\\' ? escaped() : next);
        }
        at++;
        return read.toString();
    }

    private char escaped() {
        char kind = peek();
        at++;
        int index = "\"\\/bfnrt".indexOf(kind);
        if (index >= 0) {
            return "\"\\/\b\f\n\r\t".charAt(index);
        }
        if (kind != 'u' || at + 4 > text.length()) {
            throw wrong("an invalid escape");
        }
        int code = 0;
        for (int end = at + 4; at < end; at++) {
            int digit = Character.digit(text.charAt(at), 16);
            if (digit < 0) {
                throw wrong("an invalid escape");
            }
            code = code * 16 + digit;
        }
        return (char) code;
    }

    private void space() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
    }

    private char peek() {
        if (at >= text.length()) {
            return '\0';
        }
        char next = text.charAt(at);
        if (next == '\0') {
            throw wrong("a NUL character");
        }
        return next;
    }

    private IllegalArgumentException wrong(String reason) {
        return new IllegalArgumentException(reason + " at character " + at);
    }
}
