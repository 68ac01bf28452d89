package dev.pocketserve.bridge;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import java.io.File;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.json.JSONObject;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;

/**
 * Every call against a real server with the embedded models, the same for each transport. System properties name the
 * server: pocketserve.http, pocketserve.socket, pocketserve.token (a file) and pocketserve.digits (a folder of
 * pictures).
 */
public abstract class LiveCases {
    static final int LIMIT = 60_000;
    private PocketServe client;

    abstract Transport transport();

    static PocketServe.Builder builder(Transport transport) {
        return PocketServe.builder().transport(transport)
                .httpPort(Integer.getInteger("pocketserve.http"))
                .socketPort(Integer.getInteger("pocketserve.socket", 1));
    }

    /** Creates a client as an app would. */
    @Before
    public void open() throws Exception {
        client = builder(transport()).tokenFile(new File(System.getProperty("pocketserve.token"))).build();
    }

    /** Closes the client. */
    @After
    public void close() {
        client.close();
    }

    static byte[] digit(int digit) throws Exception {
        return Files.readAllBytes(new File(System.getProperty("pocketserve.digits"), digit + ".png").toPath());
    }

    @Test(timeout = LIMIT)
    public void itIsThere() throws Exception {
        assertTrue(client.isLive());
        assertTrue(client.isReady());
        assertTrue(client.isModelReady("digits"));
        assertFalse(client.isModelReady("nothing"));
        assertTrue(client.serverMetadata().has("version"));
        assertTrue(client.models().contains("digits"));
    }

    @Test(timeout = LIMIT)
    public void everyDigitIsRecognised() throws Exception {
        for (int digit = 0; digit < 10; digit++) {
            Prediction answer = client.classify("digits", digit(digit));
            assertEquals(Integer.toString(digit), answer.getBest().getLabel());
            assertEquals(digit, answer.getBest().getIndex());
            assertTrue(answer.getBest().getScore() > 0.5);
            assertEquals("digits", answer.getModel());
            assertEquals("image-classification", answer.getTask());
        }
    }

    @Test(timeout = LIMIT)
    public void optionsAreHonoured() throws Exception {
        assertEquals(3, client.classify("digits", digit(3), new PredictOptions().topK(3)).getLabels().size());
        assertEquals(1, client.classify("digits", digit(3), new PredictOptions().threshold(0.5)).getLabels().size());
        Prediction other = client.classify("digits", digit(3), new PredictOptions().version("tflite-int8"));
        assertEquals("tflite-int8", other.getVersion());
        assertEquals("3", other.getBest().getLabel());
    }

    @Test(timeout = LIMIT)
    public void jsonIsRawInputToo() throws Exception {
        byte[] rows = "[[48, 1, 28.5, 100, 190, 110, 45, 4.2, 4.9, 92]]".getBytes(FakePeer.UTF_8);
        Prediction answer = client.predict("diabetes", rows, "application/json", null);
        assertTrue(answer.toString(), answer.getBest().getValue() > 0);
    }

    @Test(timeout = LIMIT)
    public void tensorsAreAnswered() throws Exception {
        JSONObject output = client.modelMetadata("digits").getJSONArray("outputs").getJSONObject(0);
        for (int rows : new int[] {1, 300}) {
            Tensor input = Tensor.of("image", new float[64 * rows], rows, 8, 8, 1);
            InferResult result =
                    client.infer("digits", new InferOptions().version("tflite").id("a").deadlineMs(30_000), input);
            Tensor scores = result.get(output.getString("name"));
            assertArrayEquals(new long[] {rows, 10}, scores.getShape());
            float sum = 0;
            for (float score : scores.floats()) {
                sum += score;
            }
            assertEquals(rows, sum, 0.01 * rows);
            assertEquals("a", result.getJson().getString("id"));
            assertEquals("tflite", result.getVersion());
        }
    }

    @Test(timeout = LIMIT)
    public void aSequenceKeepsItsMemoryUntilItIsClosed() throws Exception {
        ModelSequence sequence = client.sequence("sum");
        try (ModelSequence other = client.sequence("sum", "onnx")) {
            assertEquals(3, sum(sequence.infer(step(1, 2))), 0);
            assertEquals(10, sum(other.infer(step(4, 6))), 0);
            Prediction raw = sequence.predict("[[3, 4]]".getBytes(FakePeer.UTF_8), "application/json");
            assertEquals(10, raw.getJson().getJSONArray("predictions").getJSONObject(0).getJSONArray("data").getDouble(0), 0);
            assertEquals(12, sum(other.infer(new InferOptions().outputs("y"), step(1, 1))), 0);
        }
        sequence.close();
        sequence.close();
        assertEquals(2, sum(sequence.infer(step(1, 1))), 0);  // another sequence begins
        sequence.close();
    }

    @Test(timeout = LIMIT)
    public void aFailedFirstStepLeavesNothingToClose() throws Exception {
        try (ModelSequence sequence = client.sequence("nothing")) {
            ExpectedFailure.of("MODEL_NOT_FOUND", () -> sequence.infer(step(1, 2)));
            ExpectedFailure.of("MODEL_NOT_FOUND", () -> sequence.predict(digit(1), "image/png"));
        }
    }

    private static Tensor step(float... values) {
        return Tensor.of("x", values, 1, 2);
    }

    private static float sum(InferResult result) {
        return result.get("y").floats()[0];
    }

    @Test(timeout = LIMIT)
    public void faultsKeepTheServersCode() throws Exception {
        assertEquals(404, ExpectedFailure.of("MODEL_NOT_FOUND", () -> client.classify("nothing", digit(1))).getStatus());
        ExpectedFailure.of("VERSION_NOT_FOUND",
                () -> client.classify("digits", digit(1), new PredictOptions().version("none")));
        ExpectedFailure.of("INVALID_INPUT", () -> client.classify("digits", "no picture".getBytes(FakePeer.UTF_8)));
        ExpectedFailure.of("INVALID_PARAMETER",
                () -> client.classify("digits", digit(1), new PredictOptions().parameter("nonsense", "1")));
        ExpectedFailure.of("INVALID_TENSOR", () -> client.infer("digits", Tensor.of("image", new float[7], 7)));
        assertEquals("7", client.classify("digits", digit(7)).getBest().getLabel());
    }

    @Test(timeout = LIMIT)
    public void modelsComeAndGo() throws Exception {
        client.unload("petals");
        assertFalse(client.isModelReady("petals"));
        client.load("petals");
        assertTrue(client.isModelReady("petals"));
        client.load("petals", true);
        assertTrue(client.isModelReady("petals", "tflite"));
        assertFalse(client.isModelReady("petals", "none"));
        boolean listed = false;
        for (ModelState state : client.index()) {
            boolean answers = state.getName().equals("petals") && state.isDefault();
            listed |= answers && state.getState().equals("READY");
            assertTrue(!answers || state.getTask().equals("tabular-regression"));
        }
        assertTrue(listed);
    }

    @Test(timeout = LIMIT)
    public void aWrongTokenIsRejected() throws Exception {
        try (PocketServe untrusted = builder(transport()).token(FakePeer.TOKEN).build()) {
            ExpectedFailure.of(PocketServeException.TOKEN_UNKNOWN, untrusted::models);
            ExpectedFailure.of(PocketServeException.TOKEN_UNKNOWN, () -> untrusted.classify("digits", digit(1)));
        }
        try (PocketServe anonymous = builder(transport()).build()) {
            ExpectedFailure.of(PocketServeException.TOKEN_UNKNOWN, anonymous::models);
        }
    }

    @Test(timeout = LIMIT)
    public void aBodyOverTheLimitIsRejected() throws Exception {
        PocketServeException error =
                ExpectedFailure.of("BODY_TOO_LARGE", () -> client.classify("digits", new byte[65 << 20]));
        assertEquals(413, error.getStatus());
        assertTrue(client.isLive());
    }

    @Test(timeout = LIMIT)
    public void manyThreadsShareAClient() throws Exception {
        List<Thread> threads = new ArrayList<>();
        List<Throwable> faults = new ArrayList<>();
        for (int i = 0; i < 8; i++) {
            final int digit = i;
            Thread thread = new Thread(() -> {
                try {
                    for (int round = 0; round < 20; round++) {
                        assertEquals("" + digit, client.classify("digits", digit(digit)).getBest().getLabel());
                    }
                } catch (Throwable fault) {
                    synchronized (faults) {
                        faults.add(fault);
                    }
                }
            });
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        assertEquals(faults.toString(), 0, faults.size());
    }

    @Test(timeout = LIMIT)
    public void callbacksAreCalled() throws Exception {
        CountDownLatch left = new CountDownLatch(10);
        List<String> wrong = new ArrayList<>();
        for (int i = 0; i < 10; i++) {
            final String expected = "" + i;
            client.async().classify("digits", digit(i), null, new Callback<Prediction>() {
                @Override
                public void onResult(Prediction result) {
                    note(result.getBest().getLabel().equals(expected) ? null : result.toString());
                }

                @Override
                public void onError(PocketServeException error) {
                    note(error.toString());
                }

                private void note(String fault) {
                    synchronized (wrong) {
                        if (fault != null) {
                            wrong.add(fault);
                        }
                    }
                    left.countDown();
                }
            });
        }
        assertTrue(left.await(30, TimeUnit.SECONDS));
        assertEquals("[]", wrong.toString());
    }
}
