package dev.pocketserve.bridge;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import java.io.File;
import java.util.concurrent.TimeUnit;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;

/**
 * A client of two real servers; the first is in low-power mode and is killed at the end. System properties are those of
 * {@link LiveCases}, the same with {@code pocketserve.phone} for the first server, and its pocketserve.phone.pid.
 */
public class FallbackLiveTest {
    private static final int BACKGROUND = 6;
    private static final float[] FLOWER = {5.1f, 3.5f, 1.4f};
    private PocketServe client;
    private PocketServe alone;
    private String phone;
    private String desktop;

    static PocketServe.Builder builder(String server) {
        return PocketServe.builder()
                .transport(Transport.valueOf(System.getProperty("pocketserve.transport")))
                .httpPort(Integer.getInteger(server + ".http"))
                .socketPort(Integer.getInteger(server + ".socket"))
                .tokenFile(new File(System.getProperty(server + ".token")));
    }

    static String name(String server) {
        String port = System.getProperty("pocketserve.transport").equals("HTTP") ? ".http" : ".socket";
        return "127.0.0.1:" + System.getProperty(server + port);
    }

    /** Each server has its own token. */
    @Before
    public void open() throws Exception {
        client = builder("pocketserve.phone").fallback(builder("pocketserve")).build();
        alone = builder("pocketserve.phone").build();
        phone = name("pocketserve.phone");
        desktop = name("pocketserve");
    }

    /** Both ends. */
    @After
    public void close() throws Exception {
        client.close();
        alone.close();
        assertEquals(0, Leaks.threads());
    }

    private static Tensor flower() {
        return Tensor.of("features", FLOWER, 1, 3);
    }

    @Test(timeout = LiveCases.LIMIT)
    public void theFallbackAnswersIfTheFirstServerCannot() throws Exception {
        Prediction first = client.classify("digits", LiveCases.digit(7));
        float[] width = client.infer("petals", flower()).get("petal_width").floats();
        assertEquals("7", first.getBest().getLabel());
        assertEquals(phone, first.getServer());
        assertEquals("", alone.classify("digits", LiveCases.digit(7)).getServer());
        retryableErrorsUseTheFallback();
        wrongRequestsDoNot();

        new ProcessBuilder("kill", "-9", System.getProperty("pocketserve.phone.pid")).start().waitFor(10, TimeUnit.SECONDS);
        Prediction answer = client.classify("digits", LiveCases.digit(7));
        assertEquals("7", answer.getBest().getLabel());
        assertEquals(desktop, answer.getServer());
        InferResult result = client.infer("petals", flower());
        assertEquals(desktop, result.getServer());
        assertArrayEquals(width, result.get("petal_width").floats(), 0);
        assertEquals("petals", client.modelMetadata("petals").getString("name"));
        RecordingCallback<Prediction> callback = new RecordingCallback<>();
        client.async().classify("digits", LiveCases.digit(3), null, callback);
        assertEquals("result", callback.next());
        healthAndIndexUseOnlyTheFirstServer();
    }

    private void retryableErrorsUseTheFallback() throws Exception {
        PredictOptions background = new PredictOptions().priority(BACKGROUND);
        assertEquals(desktop, client.classify("digits", LiveCases.digit(7), background).getServer());
        InferOptions low = new InferOptions().priority(BACKGROUND);
        assertEquals(desktop, client.infer("petals", low, flower()).getServer());
        ExpectedFailure.of("LOW_POWER", () -> alone.infer("petals", low, flower()));  // never by itself
    }

    private void wrongRequestsDoNot() throws Exception {
        for (ExpectedFailure.Attempt wrong : new ExpectedFailure.Attempt[] {
            () -> client.classify("nothing", LiveCases.digit(1)),
            () -> client.classify("digits", new byte[] {1, 2, 3}),
            () -> client.infer("digits", Tensor.of("image", new float[7], 7)),
        }) {
            assertEquals(0, ExpectedFailure.of(wrong).getSuppressed().length);
        }
        try (PocketServe stranger = builder("pocketserve.phone")
                .fallback(builder("pocketserve").token("another-token-of-32-characters-at-least")).build()) {
            PocketServeException error = ExpectedFailure.of("LOW_POWER",
                    () -> stranger.infer("petals", new InferOptions().priority(BACKGROUND), flower()));
            assertEquals(1, error.getSuppressed().length);
        }
    }

    private void healthAndIndexUseOnlyTheFirstServer() throws Exception {
        assertFalse(client.isLive());
        for (ExpectedFailure.Attempt call : new ExpectedFailure.Attempt[] {
            () -> client.serverMetadata(),
            () -> client.models(),
            () -> client.index(),
            () -> { client.load("petals"); return null; },
            () -> { client.unload("petals"); return null; },
            () -> client.sequence("sum").infer(Tensor.of("x", new float[] {1, 2}, 1, 2)),
        }) {
            PocketServeException error = ExpectedFailure.of(call);
            assertTrue(error.toString(), error.getCode().equals(PocketServeException.SERVER_UNREACHABLE)
                    || error.getCode().equals(PocketServeException.CONNECTION_LOST));
        }
    }
}
