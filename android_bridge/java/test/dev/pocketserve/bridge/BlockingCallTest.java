package dev.pocketserve.bridge;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import dev.pocketserve.bridge.wire.FrameType;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;

/** Work of an app that makes blocking calls, on a thread of the library. */
public class BlockingCallTest {
    private static final int LIMIT = 30_000;
    private static final String SEEN = "{\"predictions\":[{\"label\":\"x\",\"score\":1}]}";

    private final BlockingQueue<String> uncaught = new LinkedBlockingQueue<>();
    private final BlockingQueue<String> ends = new LinkedBlockingQueue<>();
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

    /** Makes two calls and records how each ended. */
    private String twice(PocketServe client) throws PocketServeException {
        String last = "";
        for (int i = 0; i < 2; i++) {
            try {
                last = client.classify("m", new byte[1]).summary();
            } catch (PocketServeException error) {
                last = error.getCode();
            }
            ends.add(last);
        }
        return last;
    }

    private void expectBothCancelled(RecordingCallback<String> callback) throws InterruptedException {
        assertEquals(PocketServeException.CANCELLED, callback.next());
        for (int i = 0; i < 2; i++) {
            assertEquals(PocketServeException.CANCELLED, ends.poll(10, TimeUnit.SECONDS));
        }
    }

    @Test(timeout = LIMIT)
    public void theResultReachesTheCallback() throws Exception {
        RecordingCallback<String> callback = new RecordingCallback<>();
        try (FakePeer peer = new FakePeer(FakePeer.answering(SEEN)); PocketServe client = peer.client().build()) {
            client.async().call(() -> twice(client), callback);
            assertEquals("result", callback.next());
            assertEquals("x (100.0 %)", ends.poll());
        }
        assertEquals(0, Leaks.threads());
    }

    @Test(timeout = LIMIT)
    public void cancellingItTellsTheServer() throws Exception {
        CountDownLatch requested = new CountDownLatch(1);
        CountDownLatch cancelled = new CountDownLatch(1);
        RecordingCallback<String> callback = new RecordingCallback<>();
        try (FakePeer peer = new FakePeer(c -> {
            c.handshake().next(FrameType.REQUEST);
            requested.countDown();
            c.next(FrameType.CANCEL);
            cancelled.countDown();
            c.untilClosed();
        }); PocketServe client = peer.client().build()) {
            Call call = client.async().call(() -> twice(client), callback);
            assertTrue(requested.await(10, TimeUnit.SECONDS));
            call.cancel();
            expectBothCancelled(callback);
            assertTrue(cancelled.await(10, TimeUnit.SECONDS));
        }
    }

    @Test(timeout = LIMIT)
    public void cancellingItClosesTheConnectionOfHttp() throws Exception {
        RecordingCallback<String> callback = new RecordingCallback<>();
        try (ServerSocket listener = new ServerSocket(0, 10, InetAddress.getByName("127.0.0.1"));
                PocketServe client = PocketServe.builder().transport(Transport.HTTP)
                        .httpPort(listener.getLocalPort()).build()) {
            Call call = client.async().call(() -> twice(client), callback);
            try (Socket accepted = listener.accept()) {
                InputStream in = accepted.getInputStream();
                assertTrue(in.read() >= 0);
                call.cancel();
                while (in.read() >= 0) {
                    continue; // until the client has closed it
                }
            }
            expectBothCancelled(callback);
        }
    }

    @Test(timeout = LIMIT)
    public void anExceptionOfTheWorkReachesTheApp() throws Exception {
        RecordingCallback<String> callback = new RecordingCallback<>();
        try (FakePeer peer = new FakePeer(FakePeer.answering(SEEN)); PocketServe client = peer.client().build()) {
            client.async().call(() -> {
                throw new IllegalStateException("the app's own fault");
            }, new RecordingCallback<String>());
            assertEquals("the app's own fault", uncaught.poll(10, TimeUnit.SECONDS));
            client.async().call(() -> twice(client), callback);
            assertEquals("result", callback.next());
        }
    }
}
