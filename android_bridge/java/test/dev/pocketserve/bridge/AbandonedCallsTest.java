package dev.pocketserve.bridge;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertTrue;

import dev.pocketserve.bridge.wire.Frame;
import dev.pocketserve.bridge.wire.FrameEncoder;
import dev.pocketserve.bridge.wire.FrameType;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.Test;

/** Cancelled calls that a live server never answers, as when one model hangs. */
public class AbandonedCallsTest {
    private static final int LIMIT = 30_000;
    private static final String SEEN = "{\"predictions\":[{\"label\":\"x\",\"score\":1}]}";

    /** Answers only the first request, but answers pings. */
    private static void hanging(FakePeer.Connection c, BlockingQueue<Integer> types) throws Exception {
        c.handshake();
        c.respond(c.next().requestId(), 200, SEEN);
        while (true) {
            Frame frame = c.next();
            types.add(frame.type());
            if (frame.type() == FrameType.PING) {
                c.send(FrameEncoder.emptyFrame(FrameType.PONG, 0, frame.arg()));
            }
        }
    }

    /** Cancelled calls to one model must not block calls to others. */
    @Test(timeout = LIMIT)
    public void cancelledRequestsDoNotFillTheConnectionForever() throws Exception {
        assertTrue(FakePeer.LIMITS.contains("\"max_inflight\":4"));
        try (FakePeer peer = new FakePeer(c -> hanging(c, new LinkedBlockingQueue<Integer>()),
                FakePeer.answering(SEEN));
                PocketServe client = peer.client().pingIntervalMs(100).retries(0).build()) {
            client.classify("m", new byte[1]);
            for (int i = 0; i < 4; i++) {
                ExpectedFailure.of(PocketServeException.TIMEOUT,
                        () -> client.classify("m", new byte[1], new PredictOptions().timeoutMs(20)));
            }
            assertEquals("x (100.0 %)", client.classify("m", new byte[1]).summary());
            assertEquals(2, peer.accepted());
        }
    }

    /** No caller waits for the answer any more, so no pings are sent. */
    @Test(timeout = LIMIT)
    public void noPingIsSentForCancelledCalls() throws Exception {
        BlockingQueue<Integer> types = new LinkedBlockingQueue<>();
        try (FakePeer peer = new FakePeer(c -> hanging(c, types));
                PocketServe client = peer.client().pingIntervalMs(60).build()) {
            client.classify("m", new byte[1]);
            ExpectedFailure.of(PocketServeException.TIMEOUT,
                    () -> client.classify("m", new byte[1], new PredictOptions().timeoutMs(20)));
            assertEquals(FrameType.REQUEST, (int) types.take());
            assertEquals(FrameType.CANCEL, (int) types.take());
            assertNull(types.poll(400, TimeUnit.MILLISECONDS));
        }
    }
}
