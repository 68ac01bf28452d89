package dev.pocketserve.bridge;

import static dev.pocketserve.bridge.FallbackLiveTest.builder;
import static dev.pocketserve.bridge.FallbackLiveTest.name;
import static org.junit.Assert.assertEquals;

import org.junit.Test;

/**
 * A client of two real servers; the first has a full queue for digits. System properties are those of {@link
 * FallbackLiveTest}.
 */
public class FallbackBusyLiveTest {
    @Test(timeout = LiveCases.LIMIT)
    public void aFullQueueUsesTheFallback() throws Exception {
        try (PocketServe client = builder("pocketserve.phone").fallback(builder("pocketserve")).build();
                PocketServe alone = builder("pocketserve.phone").build()) {
            Prediction answer = client.classify("digits", LiveCases.digit(7));
            assertEquals("7", answer.getBest().getLabel());
            assertEquals(name("pocketserve"), answer.getServer());
            ExpectedFailure.of("QUEUE_FULL", () -> alone.classify("digits", LiveCases.digit(7)));
            RecordingCallback<Prediction> callback = new RecordingCallback<>();
            client.async().classify("digits", LiveCases.digit(3), null, callback);
            assertEquals("result", callback.next());
        }
        assertEquals(0, Leaks.threads());
    }
}
