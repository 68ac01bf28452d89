package dev.pocketserve.bridge;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import dev.pocketserve.bridge.wire.FrameType;
import java.util.Arrays;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;

/** Apps whose callbacks throw, call back, close the client or interrupt their thread: nothing else breaks. */
public class MisuseTest {
    private static final int LIMIT = 30_000;
    private static final String SEEN = "{\"predictions\":[{\"label\":\"x\",\"score\":1}]}";

    private final BlockingQueue<String> uncaught = new LinkedBlockingQueue<>();
    private Thread.UncaughtExceptionHandler before;

    /** On Android, this handler ends the app and logs the trace. */
    @Before
    public void catchWhatNobodyCatches() {
        before = Thread.getDefaultUncaughtExceptionHandler();
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> uncaught.add(error.getMessage()));
    }

    @After
    public void giveItBack() {
        Thread.setDefaultUncaughtExceptionHandler(before);
    }

    /** Acts on its first frame or answer, and then records the others. */
    private static class Clumsy extends RecordingCallback<Prediction> {
        private final Runnable first;
        private boolean finished;

        Clumsy(Runnable first) {
            this.first = first;
        }

        @Override
        void record(String event) {
            super.record(event);
            boolean now;
            synchronized (this) {
                now = !finished;
                finished = true;
            }
            if (now) {
                first.run();
            }
        }
    }

    private static void fail() {
        throw new IllegalStateException("the app's own fault");
    }

    @Test(timeout = LIMIT)
    public void aStreamOutlivesAListenerThatThrows() throws Exception {
        try (FakePeer peer = new FakePeer(FakePeer.answering(SEEN)); PocketServe client = peer.client().build()) {
            Clumsy clumsy = new Clumsy(MisuseTest::fail);
            FrameStream stream = client.stream("m", clumsy);
            stream.offer(new byte[1]);
            assertEquals("result 1", clumsy.next());
            assertEquals("the app's own fault", uncaught.poll(10, TimeUnit.SECONDS));
            stream.offer(new byte[1]);
            assertEquals("result 2", clumsy.next());
        }
        assertEquals(0, Leaks.threads());
    }

    @Test(timeout = LIMIT)
    public void aStreamOutlivesAListenerThatInterruptsItsThread() throws Exception {
        try (FakePeer peer = new FakePeer(FakePeer.answering(SEEN)); PocketServe client = peer.client().build()) {
            Clumsy clumsy = new Clumsy(() -> Thread.currentThread().interrupt());
            FrameStream stream = client.stream("m", clumsy);
            stream.offer(new byte[1]);
            assertEquals("result 1", clumsy.next());
            stream.offer(new byte[1]);
            assertEquals("result 2", clumsy.next());
        }
        assertEquals(0, Leaks.threads());
    }

    @Test(timeout = LIMIT)
    public void aCancelledCallEndsEvenIfItsCallbackThrows() throws Exception {
        CountDownLatch requested = new CountDownLatch(1);
        CountDownLatch cancelled = new CountDownLatch(1);
        try (FakePeer peer = new FakePeer(c -> {
            c.handshake().next(FrameType.REQUEST);
            requested.countDown();
            c.next(FrameType.CANCEL);
            cancelled.countDown();
            c.untilClosed();
        }); PocketServe client = peer.client().build()) {
            Clumsy clumsy = new Clumsy(MisuseTest::fail);
            Call call = client.async().classify("m", new byte[1], null, clumsy);
            assertTrue(requested.await(10, TimeUnit.SECONDS));
            call.cancel();
            assertEquals(PocketServeException.CANCELLED, clumsy.next());
            assertTrue(cancelled.await(10, TimeUnit.SECONDS));
            assertEquals("the app's own fault", uncaught.poll(10, TimeUnit.SECONDS));
        }
    }

    @Test(timeout = LIMIT)
    public void aClientClosesEvenIfItsListenersThrow() throws Exception {
        CountDownLatch requested = new CountDownLatch(2);
        Clumsy first = new Clumsy(MisuseTest::fail);
        Clumsy second = new Clumsy(MisuseTest::fail);
        try (FakePeer peer = new FakePeer(c -> {
            c.handshake();
            while (true) {
                c.next(FrameType.REQUEST);
                requested.countDown();
            }
        }); PocketServe client = peer.client().build()) {
            for (Clumsy each : new Clumsy[] {first, second}) {
                FrameStream stream = client.stream("m", each);
                stream.offer(new byte[1]);
            }
            assertTrue(requested.await(10, TimeUnit.SECONDS));
        }
        assertEquals("CLOSED 1", first.next());
        assertEquals("CLOSED 1", second.next());
        assertEquals(0, Leaks.threads());
    }

    @Test(timeout = LIMIT)
    public void callbacksMayCloseTheClientAndCallAgain() throws Exception {
        try (FakePeer peer = new FakePeer(FakePeer.answering(SEEN))) {
            PocketServe client = peer.client().build();
            BlockingQueue<String> outcomes = new LinkedBlockingQueue<>();
            Clumsy clumsy = new Clumsy(() -> {
                try {
                    outcomes.add(client.classify("m", new byte[1]).summary());
                } catch (PocketServeException error) {
                    outcomes.add(error.getCode());
                }
                client.close();
            });
            client.async().classify("m", new byte[1], null, clumsy);
            assertEquals("x (100.0 %)", outcomes.poll(10, TimeUnit.SECONDS));
            assertEquals(0, Leaks.threads());
        }
    }

    @Test(timeout = LIMIT)
    public void aListenerMayCloseItsStreamAndOfferFromWithin() throws Exception {
        try (FakePeer peer = new FakePeer(FakePeer.answering(SEEN)); PocketServe client = peer.client().build()) {
            FrameStream[] stream = new FrameStream[1];
            Clumsy clumsy = new Clumsy(() -> {
                stream[0].offer(new byte[1]);
                stream[0].close();
            });
            stream[0] = client.stream("m", clumsy);
            stream[0].offer(new byte[1]);
            assertEquals("result 1", clumsy.next());
            assertEquals("dropped 2", clumsy.next());
        }
        assertEquals(0, Leaks.threads());
    }

    // Invalid requests

    private static String longer(int length) {
        char[] text = new char[length];
        Arrays.fill(text, 'x');
        return new String(text);
    }

    @Test(timeout = LIMIT)
    public void aTooLongTargetFailsOnlyItsCall() throws Exception {
        try (FakePeer peer = new FakePeer(FakePeer.answering(SEEN)); PocketServe client = peer.client().build()) {
            client.classify("m", new byte[1]);
            PredictOptions tooLong = new PredictOptions().parameter("prompt", longer(1100));
            for (int i = 0; i < 10; i++) { // more than the maximum in progress
                PocketServeException error =
                        ExpectedFailure.of("INVALID_REQUEST", () -> client.classify("m", new byte[1], tooLong));
                assertTrue(error.getMessage(), error.getMessage().contains("1024"));
            }
            Clumsy clumsy = new Clumsy(() -> { });
            client.async().classify("m", new byte[1], tooLong, clumsy);
            assertEquals("INVALID_REQUEST", clumsy.next());
            assertEquals("x (100.0 %)", client.classify("m", new byte[1]).summary());
            assertEquals(1, peer.accepted());
        }
    }

    @Test(timeout = LIMIT)
    public void anInvalidContentTypeIsRejectedImmediately() throws Exception {
        try (PocketServe client = PocketServe.builder().build()) {
            Clumsy clumsy = new Clumsy(() -> { });
            FrameStream stream = client.stream("m", clumsy);
            for (String wrong : new String[] {"text/pl\u00e4in", "text/plain\r\nX: y", longer(129)}) {
                Runnable[] calls = {() -> client.async().predict("m", new byte[1], wrong, null, clumsy),
                    () -> stream.offer(new byte[1], wrong, null), () -> predict(client, wrong)};
                for (Runnable call : calls) {
                    try {
                        call.run();
                    } catch (IllegalArgumentException expected) {
                        continue;
                    }
                    throw new AssertionError(wrong + " was taken");
                }
            }
            assertTrue(clumsy.events.isEmpty());
        }
    }

    private static void predict(PocketServe client, String contentType) {
        try {
            client.predict("m", new byte[1], contentType);
        } catch (PocketServeException sent) {
            return;
        }
    }

    @Test
    public void aTimeoutOfZeroIsRejected() {
        for (int ms : new int[] {0, -1, Integer.MIN_VALUE}) {
            Runnable[] settings = {() -> new PredictOptions().timeoutMs(ms), () -> new InferOptions().timeoutMs(ms)};
            for (Runnable setting : settings) {
                try {
                    setting.run();
                } catch (IllegalArgumentException expected) {
                    continue;
                }
                throw new AssertionError(ms + " was taken");
            }
        }
    }

    @Test(timeout = LIMIT)
    public void theLongestTimeIsLong() throws Exception {
        try (FakePeer peer = new FakePeer(FakePeer.answering(SEEN));
                PocketServe client = peer.client().timeoutMs(Integer.MAX_VALUE).connectTimeoutMs(Integer.MAX_VALUE)
                        .pingIntervalMs(Integer.MAX_VALUE).reconnectMs(Integer.MAX_VALUE).build()) {
            PredictOptions longest = new PredictOptions().timeoutMs(Integer.MAX_VALUE);
            assertEquals("x (100.0 %)", client.classify("m", new byte[1], longest).summary());
        }
        assertEquals(0, Leaks.threads());
    }
}
