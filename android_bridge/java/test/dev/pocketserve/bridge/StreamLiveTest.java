package dev.pocketserve.bridge;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.io.File;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.Test;

/** A stream of frames to a real server: each gets one outcome, and the last one an answer. */
public class StreamLiveTest {
    private static final int FRAMES = 60;

    private static void run(Transport transport) throws Exception {
        LinkedBlockingQueue<String> events = new LinkedBlockingQueue<>();
        try (PocketServe client = LiveCases.builder(transport)
                .tokenFile(new File(System.getProperty("pocketserve.token"))).build();
                FrameStream stream = client.stream("digits", 3, new StreamListener() {
                    @Override
                    public void onResult(long frame, Prediction prediction) {
                        events.add(frame + " " + prediction.getBest().getLabel());
                    }

                    @Override
                    public void onDropped(long frame) {
                        events.add(frame + " dropped");
                    }

                    @Override
                    public void onError(long frame, PocketServeException error) {
                        events.add(frame + " " + error);
                    }
                })) {
            for (int i = 0; i < FRAMES; i++) {
                stream.offer(LiveCases.digit(i % 10));
            }
            List<String> all = new ArrayList<>();
            for (int i = 0; i < FRAMES; i++) {
                all.add(events.poll(30, TimeUnit.SECONDS));
            }
            for (int i = 1; i <= FRAMES; i++) {
                boolean answered = all.contains(i + " " + (i - 1) % 10);
                assertTrue(i + ": " + all, answered || i < FRAMES && all.contains(i + " dropped"));
            }
            assertEquals(0, events.size());
        }
    }

    @Test(timeout = LiveCases.LIMIT)
    public void overHttp() throws Exception {
        run(Transport.HTTP);
    }

    @Test(timeout = LiveCases.LIMIT)
    public void overTheSocket() throws Exception {
        if (System.getProperty("pocketserve.socket") != null) {
            run(Transport.SOCKET);
        }
    }
}
