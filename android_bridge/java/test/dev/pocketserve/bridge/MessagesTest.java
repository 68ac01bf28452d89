package dev.pocketserve.bridge;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertTrue;
import static org.junit.Assert.fail;

import java.nio.ByteBuffer;
import org.json.JSONObject;
import org.junit.Test;

/** Requests as they are sent, and answers of every kind, right and wrong. */
public class MessagesTest {
    private static Answer answer(int status, String type, String json, String hex) {
        byte[] text = json.getBytes(Request.UTF_8);
        byte[] raw = FakePeer.unhex(hex);
        byte[] body = new byte[text.length + raw.length];
        System.arraycopy(text, 0, body, 0, text.length);
        System.arraycopy(raw, 0, body, text.length, raw.length);
        return new Answer(status, type, text.length, body, -1);
    }

    private static Answer json(String json) {
        return answer(200, "application/json", json, "");
    }

    private static String sent(Request request) {
        StringBuilder text = new StringBuilder();
        ByteBuffer[] body = request.body();
        if (body.length > 0) {
            byte[] bytes = new byte[request.jsonLength];
            body[0].get(bytes);
            text.append(new String(bytes, Request.UTF_8));
        }
        return text.toString().trim();
    }

    @Test
    public void pathsAreEncoded() {
        assertEquals("a-b_c.d~9", Request.encode("a-b_c.d~9"));
        assertEquals("%20%2F%3F%25%2B%C3%A4%F0%9F%98%80", Request.encode(" /?%+ä😀"));
    }

    @Test
    public void queriesHaveTheOptions() {
        assertEquals("", new PredictOptions().query());
        assertEquals("?top_k=2&threshold=0.25&version=tflite-int8&annotate=png&stream=cam%201&timeout_ms=50"
                + "&priority=1&rotation=90",
                new PredictOptions().topK(2).threshold(0.25).version("tflite-int8").annotate("png").stream("cam 1")
                        .deadlineMs(50).priority(1).parameter("rotation", "90").query());
    }

    @Test
    public void inferenceHeadersAreJson() throws Exception {
        InferOptions options = new InferOptions().id("q\"1").outputs("a", "b").priority(1).deadlineMs(20).stream("s")
                .sequence("abc", true, false).parameter("x", 0.5).parameter("y", 7);
        Request request = InferCodec.encode("/p", options, Tensor.of("ü", new float[] {1}, 1, 1));
        JSONObject json = new JSONObject(sent(request));
        assertEquals("q\"1", json.getString("id"));
        JSONObject parameters = json.getJSONObject("parameters");
        assertTrue(parameters.getBoolean("binary_data_output"));
        assertEquals(20_000, parameters.getInt("timeout"));
        assertEquals("abc", parameters.getString("sequence_id"));
        assertTrue(parameters.getBoolean("sequence_start"));
        assertFalse(parameters.getBoolean("sequence_end"));
        assertEquals(0.5, parameters.getDouble("x"), 0);
        assertEquals(2, json.getJSONArray("outputs").length());
        JSONObject input = json.getJSONArray("inputs").getJSONObject(0);
        assertEquals("ü", input.getString("name"));
        assertEquals("[1,1]", input.getJSONArray("shape").toString());
        assertEquals(4, input.getJSONObject("parameters").getInt("binary_data_size"));
        assertEquals(request.jsonLength + 4, request.bodyLength);
        assertTrue(request.isMixed());
    }

    @Test
    public void emptyTensorsArePlainJson() {
        Request request = InferCodec.encode("/p", new InferOptions(), Tensor.of("x", new float[0], 0));
        assertEquals(request.jsonLength, request.bodyLength);
        assertFalse(request.isMixed());
    }

    @Test
    public void wrongParametersAreRejected() {
        for (Object value : new Object[] {null, Double.NaN, new int[0], 'c'}) {
            try {
                new InferOptions().parameter("p", value);
                fail(String.valueOf(value));
            } catch (IllegalArgumentException expected) {
                assertTrue(expected.getMessage().contains("parameter p"));
            }
        }
    }

    @Test
    public void outputsAreFoundByName() throws Exception {
        InferResult result = InferCodec.decode(answer(200, "application/octet-stream",
                "{\"model_name\":\"m\",\"model_version\":\"v\",\"outputs\":["
                + "{\"name\":\"a\",\"datatype\":\"FP32\",\"shape\":[1,1],\"parameters\":{\"binary_data_size\":4}},"
                + "{\"name\":\"b\",\"datatype\":\"UINT8\",\"shape\":[2],\"parameters\":{\"binary_data_size\":2}}]}   ",
                "0000803f0aff"));
        assertEquals("m", result.getModel());
        assertEquals("v", result.getVersion());
        assertArrayEquals(new float[] {1}, result.get("a").floats(), 0);
        assertArrayEquals(new int[] {10, 255}, result.get("b").ints());
        assertEquals("[a, b]", result.getTensors().keySet().toString());
        try {
            result.get("c");
            fail("there is no c");
        } catch (IllegalArgumentException expected) {
            assertTrue(expected.getMessage().contains("[a, b]"));
        }
    }

    @Test
    public void brokenInferenceAnswersAreNamed() throws Exception {
        String[] bad = {
            "[]", "x", "{}", "{\"outputs\":[1]}", "{\"outputs\":[{}]}",
            "{\"outputs\":[{\"name\":\"a\",\"datatype\":\"FP32\",\"shape\":[2],\"parameters\":{\"binary_data_size\":4}}]}",
            "{\"outputs\":[{\"name\":\"a\",\"datatype\":\"FP33\",\"shape\":[1],\"parameters\":{\"binary_data_size\":4}}]}",
            "{\"outputs\":[{\"name\":\"a\",\"datatype\":\"FP32\",\"shape\":[1],\"parameters\":{\"binary_data_size\":8}}]}",
            "{\"outputs\":[{\"name\":\"a\",\"datatype\":\"FP32\",\"parameters\":{\"binary_data_size\":4}}]}",
            "{\"outputs\":[{\"name\":\"a\",\"datatype\":\"UINT8\",\"shape\":[1],\"parameters\":{\"binary_data_size\":1}}]}",
            "{\"outputs\":[{\"name\":\"\",\"datatype\":\"FP32\",\"shape\":[1],\"parameters\":{\"binary_data_size\":4}}]}",
        };
        for (String json : bad) {
            ExpectedFailure.of(PocketServeException.BAD_ANSWER, () -> InferCodec.decode(answer(200, "x/y", json, "00000000")));
        }
    }

    @Test
    public void predictionsAreTyped() throws Exception {
        Prediction answer = Prediction.from(json("{\"model\":\"d\",\"version\":\"tflite\",\"task\":\"object-detection\","
                + "\"predictions\":[{\"label\":\"cat\",\"index\":3,\"score\":0.998,"
                + "\"box\":{\"x\":1,\"y\":2.5,\"width\":3,\"height\":4}},{\"name\":\"age\",\"value\":41.5,\"unit\":\"y\"}],"
                + "\"timing_ms\":{\"queue\":0.1,\"pre\":0.2,\"infer\":0.4,\"post\":0.3}}"));
        assertEquals("d", answer.getModel());
        assertEquals("tflite", answer.getVersion());
        assertEquals("object-detection", answer.getTask());
        assertEquals("cat (99.8 %)", answer.summary());
        Label best = answer.getBest();
        assertEquals("cat", best.getLabel());
        assertEquals(3, best.getIndex());
        assertEquals(0.998, best.getScore(), 0);
        assertEquals(2.5, best.getBox().getY(), 0);
        assertEquals(0.4, answer.getTiming().getInferMs(), 0);
        Label value = answer.getLabels().get(1);
        assertEquals("age 41.5 y", value.toString());
        assertEquals(41.5, value.getValue(), 0);
        assertEquals(-1, value.getIndex());
        assertTrue(Double.isNaN(value.getScore()));
        assertNull(value.getBox());
        assertEquals("cat (12.5)", Prediction.from(json(
                "{\"predictions\":[{\"label\":\"cat\",\"score\":12.5}]}")).summary());
        assertEquals("{\"embedding\":[1,2]}", Prediction.from(json(
                "{\"predictions\":[{\"embedding\":[1,2]}]}")).summary());
        String longText = new String(new char[999]).replace('\0', 'x');
        assertEquals(203, Prediction.from(json(
                "{\"predictions\":[{\"text\":\"" + longText + "\"}]}")).summary().length());
        assertEquals("nothing found", Prediction.from(json("{\"predictions\":[]}")).summary());
    }

    @Test
    public void aPictureIsAnAnswerToo() throws Exception {
        Prediction answer = Prediction.from(new Answer(200, "image/png", 0, new byte[] {1, 2}, -1));
        assertArrayEquals(new byte[] {1, 2}, answer.getPicture());
        assertNull(answer.getBest());
    }

    @Test
    public void brokenPredictionsAreNamed() throws Exception {
        for (String bad : new String[] {"", "{", "[1]", "{}", "{\"predictions\":{}}", "{\"predictions\":[1]}"}) {
            ExpectedFailure.of(PocketServeException.BAD_ANSWER, () -> Prediction.from(json(bad)));
        }
    }

    @Test
    public void errorsKeepTheirCode() throws Exception {
        PocketServeException error = ExpectedFailure.of("MODEL_NOT_FOUND",
                () -> answer(404, "application/json", "{\"error\":\"no x\",\"code\":\"MODEL_NOT_FOUND\"}", "").orThrow());
        assertEquals(404, error.getStatus());
        assertEquals("no x", error.getMessage());
        assertEquals("MODEL_NOT_FOUND: no x", error.toString());
        assertFalse(error.isRetryable());
        assertTrue(ExpectedFailure.of("SHUTTING_DOWN",
                () -> answer(503, "x/y", "{\"error\":\"e\",\"code\":\"SHUTTING_DOWN\"}", "").orThrow()).isRetryable());
        ExpectedFailure.of(PocketServeException.TOKEN_UNKNOWN, () -> answer(401, "x/y", "", "").orThrow());
    }

    @Test
    public void successIsExactly200() throws Exception {
        for (int status : new int[] {201, 204, 301, 400, 500}) {
            PocketServeException error =
                    ExpectedFailure.of(PocketServeException.BAD_ANSWER, () -> answer(status, "text/html", "<html>", "").orThrow());
            assertEquals(status, error.getStatus());
        }
    }
}
