package dev.pocketserve.bridge;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import dev.pocketserve.bridge.wire.Frame;
import dev.pocketserve.bridge.wire.FrameEncoder;
import dev.pocketserve.bridge.wire.FrameType;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.Test;

/**
 * Many threads and a server whose connections end in various ways: each call gets its own answer. The system property
 * pocketserve.seed sets the random seed.
 */
public class ChaosTest {
    private static final int THREADS = 8;
    private static final int CALLS = 60;

    /** Answers a few requests, some out of order, then ends in one of several ways. */
    private static void serveBriefly(FakePeer.Connection c, int seed) throws Exception {
        Random random = new Random(seed);
        c.handshake();
        Frame pending = null;
        for (int left = 1 + random.nextInt(40); left > 0; left--) {
            Frame frame = c.next(FrameType.REQUEST);
            // Delayed only if another request is waiting, because this might be the last.
            if (pending == null && left > 1 && c.socket.getInputStream().available() > 0 && random.nextInt(2) == 0) {
                pending = frame;
                continue;
            }
            answer(c, frame);
            if (pending != null) {
                answer(c, pending);
                pending = null;
            }
        }
        switch (random.nextInt(4)) {
            case 0:
                c.reset();
                break;
            case 1:
                c.send(FrameEncoder.jsonFrame(FrameType.GOAWAY, pending == null ? 0xffffffffL : pending.requestId(), 1,
                        "{}".getBytes(FakePeer.UTF_8)));
                if (pending != null) {
                    answer(c, pending);
                }
                break;
            case 2:
                c.socket.shutdownOutput();
                c.untilClosed();
                break;
            default:
                break;
        }
    }

    private static void answer(FakePeer.Connection c, Frame frame) throws Exception {
        c.respond(frame.requestId(), 200, "{\"models\":[\"" + frame.target() + "\"]}");
    }

    @Test(timeout = 120_000)
    public void everyCallGetsItsOwnAnswer() throws Exception {
        AtomicInteger seeds = new AtomicInteger(Integer.getInteger("pocketserve.seed", 0));
        List<Throwable> faults = Collections.synchronizedList(new ArrayList<Throwable>());
        try (FakePeer peer = new FakePeer(c -> {
            try {
                serveBriefly(c, seeds.incrementAndGet());
            } catch (java.net.SocketException clientLeft) {
                return;
            }
        }); PocketServe client = peer.client().retries(100).timeoutMs(60_000).build()) {
            List<Thread> threads = new ArrayList<>();
            for (int i = 0; i < THREADS; i++) {
                final String name = "t" + i;
                Thread thread = new Thread(() -> {
                    try {
                        for (int call = 0; call < CALLS; call++) {
                            String model = name + "-" + call;
                            String answer = client.modelMetadata(model).getJSONArray("models").getString(0);
                            assertEquals("GET /v2/models/" + model, answer);
                        }
                    } catch (Throwable fault) {
                        faults.add(fault);
                    }
                });
                threads.add(thread);
                thread.start();
            }
            for (Thread thread : threads) {
                thread.join();
            }
            assertEquals(faults.toString(), 0, faults.size());
            assertTrue("only " + peer.accepted() + " connections", peer.accepted() > 5);
        }
    }
}
