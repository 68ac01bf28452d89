package dev.pocketserve.bridge;

import java.io.ByteArrayOutputStream;
import org.json.JSONException;
import org.json.JSONObject;

/** Reads server-sent events in OpenAI's form from parts of any size. */
abstract class EventReader implements PartReceiver {
    private static final int MAX_LINE_BYTES = 1 << 20;
    private static final int MAX_TEXT = 1 << 24;
    private static final String PREFIX = "data:";
    private static final String DONE = "[DONE]";

    private final ByteArrayOutputStream line = new ByteArrayOutputStream();
    private final StringBuilder text = new StringBuilder();
    private boolean done;

    @Override
    public void part(byte[] bytes, int length) throws PocketServeException {
        for (int i = 0; i < length; i++) {
            if (bytes[i] == '\n') {
                String whole = new String(line.toByteArray(), Request.UTF_8);
                line.reset();
                readLine(whole);
            } else {
                if (line.size() >= MAX_LINE_BYTES) {
                    throw Answer.bad("an event has more than " + MAX_LINE_BYTES + " bytes", null);
                }
                line.write(bytes[i]);
            }
        }
    }

    private void readLine(String whole) throws PocketServeException {
        if (done || !whole.startsWith(PREFIX)) {
            return;
        }
        String data = whole.substring(PREFIX.length()).trim();
        if (data.equals(DONE)) {
            done = true;
            return;
        }
        try {
            checkAndRead(new JSONObject(data));
        } catch (JSONException error) {
            throw Answer.bad("an event is not a JSON object", error);
        } catch (StackOverflowError error) {
            throw Answer.bad("an event is nested too deeply", null);
        }
    }

    private void checkAndRead(JSONObject event) throws PocketServeException {
        JSONObject fault = event.optJSONObject("error");
        if (fault != null) {
            throw new PocketServeException(Answer.openAiCode(fault), 500, false, -1,
                    Answer.shorten(fault.optString("message", "the answer ended with an error")), null);
        }
        read(event);
    }

    /** Reads one event other than an error. */
    abstract void read(JSONObject event) throws PocketServeException;

    /** Adds a piece to the whole text, which is bounded. */
    final void append(String piece) throws PocketServeException {
        if (text.length() + piece.length() > MAX_TEXT) {
            throw Answer.bad("its text has more than " + MAX_TEXT + " characters", null);
        }
        text.append(piece);
    }

    /** Returns the whole text once the last byte was read. */
    final String wholeText() throws PocketServeException {
        if (!done) {
            throw Faults.connectionLost("the server ended in the middle of an answer", null);
        }
        return text.toString();
    }
}
