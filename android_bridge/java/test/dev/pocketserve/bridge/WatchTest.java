package dev.pocketserve.bridge;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.io.ByteArrayOutputStream;
import org.junit.Test;

/** When a silent peer counts as dead, and that a phone which froze the app itself is no reason. No time passes here. */
public class WatchTest {
    private static final int INTERVAL_MS = 5000;
    private static final int HEADER_BYTES = 24;

    private final ByteArrayOutputStream sent = new ByteArrayOutputStream();
    private final Connection connection = new Connection();

    private static final class Connection implements Watch.Watched {
        private Watch watch;
        private String ended;

        @Override
        public boolean isBusy() {
            return ended == null;
        }

        @Override
        public void end(PocketServeException why) {
            ended = why.getMessage();
            watch.stop();
        }
    }

    private int pings() {
        return sent.size() / HEADER_BYTES;
    }

    private void watch(Clock clock) {
        connection.watch = new Watch(connection, new FrameWriter(sent), INTERVAL_MS, clock);
        connection.watch.begin();
        connection.watch.run();
        assertTrue(connection.ended, connection.ended.contains("frozen"));
    }

    @Test(timeout = 30_000)
    public void onePingWithoutAnAnswerIsEnough() {
        FakeClock clock = new FakeClock();
        watch(clock);
        assertEquals(1, pings());
        assertEquals(3, clock.waits.size()); // one interval after the request, one in silence, one after the ping
    }

    @Test(timeout = 30_000)
    public void anAppThatWasFrozenItselfAsksAgain() {
        FakeClock clock = new FakeClock() {
            @Override
            void await(Object monitor, long ms) throws InterruptedException {
                super.await(monitor, ms);
                if (waits.size() == 3) { // while the answer to the ping is awaited
                    pass(10 * INTERVAL_MS);
                }
            }
        };
        watch(clock);
        assertEquals(2, pings());
    }

    @Test(timeout = 30_000)
    public void aBusyProcessorIsNoFreeze() {
        FakeClock clock = new FakeClock() {
            @Override
            void await(Object monitor, long ms) throws InterruptedException {
                super.await(monitor, ms);
                pass(INTERVAL_MS / 2);
            }
        };
        watch(clock);
        assertEquals(1, pings());
    }
}
