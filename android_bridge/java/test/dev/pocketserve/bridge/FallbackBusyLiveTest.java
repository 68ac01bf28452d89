package dev.pocketserve.bridge;

import static org.junit.Assert.assertEquals;

import java.io.File;
import org.junit.Test;

/**
 * A client of two real servers, of which the first has no room in the queue of digits. System properties are those of
 * {@link FallbackLiveTest}.
 */
public class FallbackBusyLiveTest {
    private static PocketServe.Builder builder(String server) {
        return PocketServe.builder()
                .transport(Transport.valueOf(System.getProperty("pocketserve.transport")))
                .httpPort(Integer.getInteger(server + ".http"))
                .socketPort(Integer.getInteger(server + ".socket"))
                .tokenFile(new File(System.getProperty(server + ".token")));
    }

    private static String name(String server) {
        String port = System.getProperty("pocketserve.transport").equals("HTTP") ? ".http" : ".socket";
        return "127.0.0.1:" + System.getProperty(server + port);
    }

    @Test(timeout = LiveCases.LIMIT)
    public void aFullQueueGoesToTheOtherServer() throws Exception {
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
