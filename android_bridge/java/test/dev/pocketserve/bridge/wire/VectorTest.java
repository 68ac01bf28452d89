package dev.pocketserve.bridge.wire;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNotNull;
import static org.junit.Assert.assertTrue;
import static org.junit.Assert.fail;

import java.io.ByteArrayOutputStream;
import java.io.File;
import java.nio.charset.Charset;
import java.nio.file.Files;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.json.JSONArray;
import org.json.JSONObject;
import org.junit.Test;

/** Every vector of the protocol that concerns a client; see vectors/README.md for their members. */
public class VectorTest {
    private static final Charset UTF_8 = Charset.forName("UTF-8");

    /** A vector. */
    private static final class Vector {
        final String name;
        final JSONObject content;
        final byte[] bytes;

        Vector(File json) throws Exception {
            name = json.getName();
            content = new JSONObject(new String(Files.readAllBytes(json.toPath()), UTF_8));
            File bin = new File(json.getPath().replaceAll("\\.json$", ".bin"));
            bytes = Files.readAllBytes(bin.toPath());
        }
    }

    private static List<Vector> vectors(String folder, String kind) throws Exception {
        File[] files = new File(System.getProperty("pocketserve.vectors"), folder).listFiles();
        List<Vector> vectors = new ArrayList<>();
        assertNotNull("there is no folder of vectors called " + folder, files);
        Arrays.sort(files);
        for (File file : files) {
            if (file.getName().endsWith(".json")) {
                Vector vector = new Vector(file);
                if (vector.content.getString("kind").equals(kind)) {
                    vectors.add(vector);
                }
            }
        }
        assertFalse("no vectors of kind " + kind + " in " + folder, vectors.isEmpty());
        return vectors;
    }

    private static FrameDecoder decoder(JSONObject content) throws Exception {
        boolean client = content.getString("receiver").equals("client");
        int maximum = (int) Math.min(Integer.MAX_VALUE, content.optLong("max_body", 67_108_864));
        FrameDecoder decoder =
                new FrameDecoder(client ? FrameDecoder.Side.CLIENT : FrameDecoder.Side.SERVER, maximum);
        if (content.getString("state").equals("ready")) {
            decoder.skipHandshake();
        } else if (content.getString("awaits").equals(client ? "READY" : "AUTH")) {
            int before = client ? FrameType.CHALLENGE : FrameType.HELLO;
            decoder.feed(FrameEncoder.emptyFrame(before, 0, 0), 0, 24);
            decoder.take();
        }
        return decoder;
    }

    /** Feeds bytes in pieces; returns the frames. */
    private static void feed(FrameDecoder decoder, byte[] bytes, int step, List<Frame> frames) throws WireException {
        for (int start = 0; start < bytes.length; start += step) {
            int end = Math.min(bytes.length, start + step);
            int at = start;
            while (at < end) {
                at += decoder.feed(bytes, at, end - at);
                Frame frame = decoder.take();
                if (frame != null) {
                    frames.add(frame);
                }
            }
        }
    }

    @Test
    public void goodFramesAreRead() throws Exception {
        for (Vector vector : vectors("valid", "frames")) {
            if (!vector.content.getString("receiver").equals("client")) {
                continue;
            }
            for (int step : steps(vector.bytes)) {
                List<Frame> frames = new ArrayList<>();
                FrameDecoder decoder = decoder(vector.content);
                feed(decoder, vector.bytes, step, frames);
                check(vector, frames);
                assertFalse(vector.name, decoder.midFrame());
            }
        }
    }

    /** Feeds vectors as a whole, and byte by byte unless that would take minutes. */
    private static int[] steps(byte[] bytes) {
        int whole = Math.max(1, bytes.length);
        return bytes.length <= 1 << 20 ? new int[] {whole, 1, 25} : new int[] {whole, 4099};
    }

    private static void check(Vector vector, List<Frame> frames) throws Exception {
        JSONArray expected = vector.content.getJSONArray("frames");
        assertEquals(vector.name, expected.length(), frames.size());
        for (int i = 0; i < frames.size(); i++) {
            JSONObject item = expected.getJSONObject(i);
            Frame frame = frames.get(i);
            assertEquals(vector.name, item.getInt("type"), frame.type());
            assertEquals(vector.name, item.getString("name"), FrameType.name(frame.type()));
            assertEquals(vector.name, item.getLong("request_id"), frame.requestId());
            assertEquals(vector.name, item.getLong("arg"), frame.arg());
            assertEquals(vector.name, item.getString("target"), frame.target());
            assertEquals(vector.name, item.getLong("json_length"), frame.jsonLength());
            assertEquals(vector.name, item.getLong("body_length"), frame.body().length);
            assertEquals(vector.name, item.getString("body_sha256"), sha256(frame.body()));
            JSONArray ext = item.getJSONArray("ext");
            assertEquals(vector.name, ext.length(), frame.extensions().values().size());
            for (int j = 0; j < ext.length(); j++) {
                byte[] value = frame.extensions().values().get(ext.getJSONObject(j).getInt("tag"));
                assertEquals(vector.name, ext.getJSONObject(j).getString("value"), ClientHandshake.hex(value));
            }
        }
    }

    private static String sha256(byte[] body) throws Exception {
        return ClientHandshake.hex(MessageDigest.getInstance("SHA-256").digest(body));
    }

    @Test
    public void badFramesAreNamed() throws Exception {
        for (Vector vector : vectors("invalid", "frames")) {
            if (!vector.content.getString("receiver").equals("client")) {
                continue;
            }
            for (int step : steps(vector.bytes)) {
                List<Frame> frames = new ArrayList<>();
                try {
                    feed(decoder(vector.content), vector.bytes, step, frames);
                    fail(vector.name + " was taken");
                } catch (WireException fault) {
                    assertEquals(vector.name, vector.content.getString("code"), fault.getFault().name());
                    assertEquals(vector.name, vector.content.getInt("reason"), fault.getFault().number());
                }
                assertEquals(vector.name, vector.content.getInt("good_frames"), frames.size());
            }
        }
    }

    @Test
    public void encodedFramesMatchTheVectors() throws Exception {
        int checked = 0;
        for (Vector vector : vectors("valid", "frames")) {
            if (!vector.content.getString("receiver").equals("server") || !vector.content.optBoolean("canonical")) {
                continue;
            }
            ByteArrayOutputStream encoded = new ByteArrayOutputStream();
            JSONArray frames = vector.content.getJSONArray("frames");
            boolean encodable = true;
            for (int i = 0; i < frames.length() && encodable; i++) {
                encodable = encode(encoded, frames.getJSONObject(i), vector.bytes);
            }
            if (encodable) {
                assertArrayEquals(vector.name, vector.bytes, encoded.toByteArray());
                checked++;
            }
        }
        assertTrue("too few vectors of what a client sends: " + checked, checked > 3);
    }

    /** Appends one frame. Returns false for extensions that this library never sends. */
    private static boolean encode(ByteArrayOutputStream encoded, JSONObject frame, byte[] bin) throws Exception {
        int type = frame.getInt("type");
        JSONArray ext = frame.getJSONArray("ext");
        int length = frame.getInt("body_length");
        long id = frame.getLong("request_id");
        String contentType = null;
        if (ext.length() == 1 && ext.getJSONObject(0).getInt("tag") == Extensions.CONTENT_TYPE) {
            String hex = ext.getJSONObject(0).getString("value");
            StringBuilder text = new StringBuilder();
            for (int i = 0; i < hex.length(); i += 2) {
                text.append((char) Integer.parseInt(hex.substring(i, i + 2), 16));
            }
            contentType = text.toString();
        } else if (ext.length() > 0) {
            return false;
        }
        byte[] head = type == FrameType.REQUEST
                ? FrameEncoder.requestHead(id, frame.getLong("arg"), frame.getString("target"), contentType,
                        frame.getInt("json_length"), length, 0)
                : Arrays.copyOf(FrameEncoder.emptyFrame(type, id, frame.getLong("arg")), 24);
        if (type != FrameType.REQUEST) {
            FrameEncoder.putHeader(head, type, id, frame.getLong("arg"), 0, 0, frame.getInt("json_length"), length);
        }
        encoded.write(head);
        encoded.write(bin, encoded.size(), length);
        return true;
    }

    @Test
    public void goodHandshakesSucceed() throws Exception {
        for (Vector vector : vectors("valid", "handshake")) {
            JSONObject content = vector.content;
            ClientHandshake handshake = handshake(content);
            byte[] auth = handshake.answerChallenge(frame(content, "challenge", FrameType.CHALLENGE));
            if (content.optBoolean("byte_exact")) {
                assertEquals(vector.name, content.getString("hello"), ClientHandshake.hex(handshake.hello()));
                assertEquals(vector.name, content.getString("auth"), ClientHandshake.hex(auth));
                ConnectionLimits limits = handshake.acceptReady(frame(content, "ready", FrameType.READY));
                assertEquals(vector.name, content.getJSONObject("limits").getLong("max_frame"), limits.maxFrame());
                assertEquals(vector.name, content.getJSONObject("limits").getLong("max_inflight"), limits.maxInflight());
                assertEquals(vector.name, content.getJSONObject("limits").getLong("idle_ms"), limits.idleMs());
            }
            proofs(vector);
        }
    }

    private static void proofs(Vector vector) throws Exception {
        JSONObject content = vector.content;
        byte[] transcript =
                ClientHandshake.transcript(unhex(content.getString("hello")), unhex(content.getString("challenge")));
        assertEquals(vector.name, content.getString("transcript"), ClientHandshake.hex(transcript));
        if (!content.isNull("client_proof")) {
            byte[] key = unhex(content.getString("client_key"));
            assertEquals(vector.name, content.getString("client_proof"), ClientHandshake.clientProof(key, transcript));
            assertEquals(vector.name, content.getString("server_proof"), ClientHandshake.serverProof(key, transcript));
        }
    }

    @Test
    public void badHandshakesAreRefused() throws Exception {
        for (Vector vector : vectors("invalid", "handshake")) {
            JSONObject content = vector.content;
            if (!content.getString("refused_by").equals("client")) {
                continue;
            }
            try {
                ClientHandshake handshake = handshake(content);
                handshake.answerChallenge(frame(content, "challenge", FrameType.CHALLENGE));
                handshake.acceptReady(frame(content, "ready", FrameType.READY));
                fail(vector.name + " was taken");
            } catch (WireException fault) {
                assertEquals(vector.name, content.getString("code"), fault.getFault().name());
            }
        }
    }

    private static ClientHandshake handshake(JSONObject content) throws Exception {
        String token = content.isNull("client_key") ? null : new String(unhex(content.getString("client_key")), "US-ASCII");
        return new ClientHandshake(token, unhex(content.getString("client_nonce")), content.getLong("client_max_frame"),
                content.optString("client_name", ""), content.optBoolean("client_parts"));
    }

    private static Frame frame(JSONObject content, String name, int type) throws Exception {
        byte[] bytes = unhex(content.getString(name));
        FrameDecoder decoder = new FrameDecoder(FrameDecoder.Side.CLIENT, 4096);
        if (type == FrameType.READY) {
            decoder.feed(FrameEncoder.emptyFrame(FrameType.CHALLENGE, 0, 0), 0, 24);
            decoder.take();
        }
        assertEquals(bytes.length, decoder.feed(bytes, 0, bytes.length));
        return decoder.take();
    }

    private static byte[] unhex(String text) {
        byte[] bytes = new byte[text.length() / 2];
        for (int i = 0; i < bytes.length; i++) {
            bytes[i] = (byte) Integer.parseInt(text.substring(2 * i, 2 * i + 2), 16);
        }
        return bytes;
    }
}
