package dev.pocketserve.bridge;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.io.ByteArrayOutputStream;
import org.junit.Test;

/** A silent peer counts as dead, but not if the app itself was frozen. No time passes here. */
public class KeepAliveTest {
    private static final int INTERVAL_MS = 5000;
    private static final int HEADER_BYTES = 24;

    private final ByteArrayOutputStream sent = new ByteArrayOutputStream();
    private final Connection connection = new Connection();

    private static final class Connection implements KeepAlive.Connection {
        private KeepAlive keepAlive;
        private String ended;

        @Override
        public boolean isBusy() {
            return ended == null;
        }

        @Override
        public void end(PocketServeException reason) {
            ended = reason.getMessage();
            keepAlive.stop();
        }
    }

    private int pings() {
        return sent.size() / HEADER_BYTES;
    }

    private void keepAlive(Clock clock) {
        connection.keepAlive = new KeepAlive(connection, new FrameWriter(sent), INTERVAL_MS, clock);
        connection.keepAlive.begin();
        connection.keepAlive.run();
        assertTrue(connection.ended, connection.ended.contains("frozen"));
    }

    @Test(timeout = 30_000)
    public void onePingWithoutAnAnswerIsEnough() {
        FakeClock clock = new FakeClock();
        keepAlive(clock);
        assertEquals(1, pings());
        assertEquals(3, clock.waits.size()); // one interval after the request, one in silence, one after the ping
    }

    @Test(timeout = 30_000)
    public void anAppThatWasFrozenRetries() {
        FakeClock clock = new FakeClock() {
            @Override
            void await(Object monitor, long ms) throws InterruptedException {
                super.await(monitor, ms);
                if (waits.size() == 3) { // while waiting for the answer to the ping
                    pass(10 * INTERVAL_MS);
                }
            }
        };
        keepAlive(clock);
        assertEquals(2, pings());
    }

    @Test(timeout = 30_000)
    public void aBusyProcessorIsNotAFreeze() {
        FakeClock clock = new FakeClock() {
            @Override
            void await(Object monitor, long ms) throws InterruptedException {
                super.await(monitor, ms);
                pass(INTERVAL_MS / 2);
            }
        };
        keepAlive(clock);
        assertEquals(1, pings());
    }
}
