package dev.pocketserve.bridge;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;
import static org.junit.Assert.fail;

import dev.pocketserve.bridge.wire.Frame;
import dev.pocketserve.bridge.wire.FrameType;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.Test;

/** Camera frames: the newest one counts, each gets an outcome, and nothing blocks. */
public class FrameStreamTest {
    private static final int LIMIT = 30_000;
    private static final String SEEN = "{\"predictions\":[{\"label\":\"x\",\"score\":1}]}";

    /** Records the outcome of each frame. */
    private static final class Listener implements StreamListener {
        final BlockingQueue<String> events = new LinkedBlockingQueue<>();

        @Override
        public void onResult(long frame, Prediction prediction) {
            events.add("result " + frame);
        }

        @Override
        public void onDropped(long frame) {
            events.add("dropped " + frame);
        }

        @Override
        public void onError(long frame, PocketServeException error) {
            events.add(error.getCode() + " " + frame);
        }

        String next() throws InterruptedException {
            return events.poll(10, TimeUnit.SECONDS);
        }
    }

    @Test(timeout = LIMIT)
    public void onlyTheNewestWaitingFrameCounts() throws Exception {
        CountDownLatch first = new CountDownLatch(1);
        CountDownLatch offerReturned = new CountDownLatch(1);
        List<String> targets = new ArrayList<>();
        List<Byte> bodies = new ArrayList<>();
        try (FakePeer peer = new FakePeer(c -> {
            c.handshake();
            for (int i = 0; i < 2; i++) {
                Frame frame = c.next();
                targets.add(frame.target());
                bodies.add(frame.body()[0]);
                first.countDown();
                offerReturned.await(10, TimeUnit.SECONDS);
                c.respond(frame.requestId(), 200, SEEN);
            }
            c.untilClosed();
        }); PocketServe client = peer.client().build()) {
            Listener listener = new Listener();
            try (FrameStream stream = client.stream("m", listener)) {
                assertEquals(1, stream.offer(new byte[] {1}));
                assertTrue(first.await(10, TimeUnit.SECONDS));
                for (byte i = 2; i <= 5; i++) {
                    stream.offer(new byte[] {i});
                }
                assertEquals("dropped 2", listener.next());
                assertEquals("dropped 3", listener.next());
                assertEquals("dropped 4", listener.next());
                offerReturned.countDown();
                assertEquals("result 1", listener.next());
                assertEquals("result 5", listener.next());
            }
            assertEquals("[1, 5]", bodies.toString());
            assertTrue(targets.get(0), targets.get(0).matches("POST /predictions/m\\?stream=[0-9a-f-]{36}"));
            assertEquals(targets.get(0), targets.get(1));
            assertTrue(listener.events.isEmpty());
        }
    }

    @Test(timeout = LIMIT)
    public void errorsDoNotEndTheStreamAndSupersededIsDropped() throws Exception {
        try (FakePeer peer = new FakePeer(c -> {
            c.handshake();
            c.respond(c.next().requestId(), 409, "{\"error\":\"newer\",\"code\":\"SUPERSEDED\"}");
            c.respond(c.next().requestId(), 400, "{\"error\":\"bad\",\"code\":\"INVALID_INPUT\"}");
            c.respond(c.next().requestId(), 200, SEEN);
            c.untilClosed();
        }); PocketServe client = peer.client().build()) {
            Listener listener = new Listener();
            try (FrameStream stream = client.stream("m", listener)) {
                String[] expected = {"dropped 1", "INVALID_INPUT 2", "result 3"};
                for (String outcome : expected) {
                    stream.offer(new byte[1], "image/jpeg", new PredictOptions().frame("rgb", 1, 1, 90));
                    assertEquals(outcome, listener.next());
                }
            }
        }
    }

    @Test(timeout = LIMIT)
    public void theMaximumNumberOfFramesIsInProgress() throws Exception {
        try (FakePeer peer = new FakePeer(c -> {
            c.handshake();
            Frame frame = c.next();
            Frame two = c.next();
            c.respond(two.requestId(), 200, SEEN);
            c.respond(frame.requestId(), 200, SEEN);
            c.untilClosed();
        }); PocketServe client = peer.client().build()) {
            Listener listener = new Listener();
            try (FrameStream stream = client.stream("m", 2, listener)) {
                stream.offer(new byte[1]);
                String event = "";
                // The next frame replaces one that no thread has taken; an answer proves that two were sent.
                while (!event.startsWith("result")) {
                    stream.offer(new byte[1]);
                    event = listener.next();
                    assertTrue(event, event.startsWith("result") || event.startsWith("dropped"));
                }
            }
        }
    }

    @Test(timeout = LIMIT)
    public void closingReportsEveryFrame() throws Exception {
        CountDownLatch first = new CountDownLatch(1);
        try (FakePeer peer = new FakePeer(c -> {
            c.handshake().next();
            first.countDown();
            c.next(FrameType.CANCEL);
            c.untilClosed();
        }); PocketServe client = peer.client().build()) {
            Listener listener = new Listener();
            FrameStream stream = client.stream("m", listener);
            stream.offer(new byte[1]);
            assertTrue(first.await(10, TimeUnit.SECONDS));
            stream.offer(new byte[1]);
            stream.close();
            List<String> answers = new ArrayList<>();
            answers.add(listener.next());
            answers.add(listener.next());
            assertTrue(answers.toString(), answers.contains("dropped 2") && answers.contains("CANCELLED 1"));
            try {
                stream.offer(new byte[1]);
                fail("taken");
            } catch (IllegalStateException expected) {
                assertTrue(expected.getMessage().contains("closed"));
            }
        }
    }

    @Test(timeout = LIMIT)
    public void callbacksRunOnTheGivenExecutor() throws Exception {
        BlockingQueue<Runnable> queue = new LinkedBlockingQueue<>();
        try (FakePeer peer = new FakePeer(c -> {
            c.handshake();
            c.respond(c.next().requestId(), 200, SEEN);
            c.untilClosed();
        }); PocketServe client = peer.client().callbackExecutor(queue::add).build()) {
            Listener listener = new Listener();
            try (FrameStream stream = client.stream("m", listener)) {
                stream.offer(new byte[1]);
                Runnable callback = queue.poll(10, TimeUnit.SECONDS);
                assertTrue(listener.events.isEmpty());
                callback.run();
                assertEquals("result 1", listener.next());
            }
        }
    }
}
