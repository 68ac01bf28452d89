package dev.pocketserve.bridge;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;
import static org.junit.Assert.fail;

import dev.pocketserve.bridge.wire.Frame;
import dev.pocketserve.bridge.wire.FrameEncoder;
import dev.pocketserve.bridge.wire.FrameType;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import org.junit.Test;

/** Transcripts: the form, segments as they come, faults and cancellation. */
public class TranscribeTest {
    private static final int LIMIT = 60_000;
    private static final byte[] SOUND = {'R', 'I', 'F', 'F', 0, -1, '\r', '\n'};
    private static final String FIRST = delta("Grüß", 0, 1.5);
    private static final String SECOND = delta(" Gott.", 1.5, 2.25);
    private static final String END = "data: {\"type\":\"transcript.text.done\",\"text\":\"Grüß Gott.\","
            + "\"language\":\"de\",\"duration\":2.5}\n\ndata: [DONE]\n\n";

    private static String delta(String text, double start, double end) {
        return "data: {\"type\":\"transcript.text.delta\",\"delta\":\"" + text + "\",\"start\":" + start
                + ",\"end\":" + end + "}\n\n";
    }

    private static byte[] part(long id, String text) {
        byte[] body = text.getBytes(FakePeer.UTF_8);
        byte[] frame = new byte[FrameEncoder.HEADER_BYTES + body.length];
        FrameEncoder.putHeader(frame, FrameType.PART, id, 0, 0, 0, 0, body.length);
        System.arraycopy(body, 0, frame, FrameEncoder.HEADER_BYTES, body.length);
        return frame;
    }

    private static void check(Transcript transcript) {
        assertEquals("Grüß Gott.", transcript.getText());
        assertEquals("de", transcript.getLanguage());
        assertEquals(2.5, transcript.getDuration(), 0);
        assertEquals(2, transcript.getSegments().size());
        SpeechSegment last = transcript.getSegments().get(1);
        assertEquals(" Gott.", last.getText());
        assertEquals(1.5, last.getStart(), 0);
        assertEquals(2.25, last.getEnd(), 0);
    }

    @Test(timeout = LIMIT)
    public void segmentsAreReceivedAsTheyArrive() throws Exception {
        CountDownLatch received = new CountDownLatch(1);
        List<Frame> requests = new ArrayList<>();
        try (FakePeer peer = new FakePeer(c -> {
            c.handshake();
            Frame request = c.next(FrameType.REQUEST);
            requests.add(request);
            c.send(part(request.requestId(), FIRST));
            assertTrue(received.await(30, TimeUnit.SECONDS));
            c.send(part(request.requestId(), SECOND));
            c.respond(request.requestId(), 200, END);
            c.untilClosed();
        }); PocketServe client = peer.client().build()) {
            List<String> texts = new ArrayList<>();
            TranscribeOptions options = new TranscribeOptions().language("de").prompt("Gott").temperature(0);
            check(client.transcribe("m", SOUND, options, segment -> {
                texts.add(segment.getText());
                received.countDown();
            }));
            assertEquals(Arrays.asList("Grüß", " Gott."), texts);
        }
        String body = new String(requests.get(0).body(), "ISO-8859-1");
        String boundary = body.substring(0, body.indexOf('\r'));
        for (String field : new String[] {"language\"\r\n\r\nde", "prompt\"\r\n\r\nGott", "model\"\r\n\r\nm",
            "temperature\"\r\n\r\n0.0", "stream\"\r\n\r\ntrue"}) {
            assertTrue(field, body.contains("name=\"" + field + "\r\n" + boundary));
        }
        String sound = new String(SOUND, "ISO-8859-1");
        assertTrue(body.endsWith("\r\n\r\n" + sound + "\r\n" + boundary + "--\r\n"));
    }

    @Test(timeout = LIMIT)
    public void aWholeAnswerHasTheSameSegments() throws Exception {
        try (FakePeer peer = new FakePeer(FakePeer.answering(FIRST + SECOND + END));
                PocketServe client = peer.client().build()) {
            check(client.transcribe("m", SOUND));
        }
    }

    @Test(timeout = LIMIT)
    public void damagedAnswersAreErrors() throws Exception {
        String withoutTimes = "data: {\"type\":\"transcript.text.delta\",\"delta\":\"a\"}\n\n";
        String[][] cases = {
            {FIRST, PocketServeException.CONNECTION_LOST},
            {withoutTimes + END, PocketServeException.BAD_ANSWER},
            {FIRST + "data: {\"error\":{\"message\":\"it broke\",\"code\":\"inference_failed\"}}\n\n", "INFERENCE_FAILED"},
        };
        for (String[] each : cases) {
            try (FakePeer peer = new FakePeer(FakePeer.answering(each[0]));
                    PocketServe client = peer.client().build()) {
                client.transcribe("m", SOUND);
                fail("a damaged answer was accepted");
            } catch (PocketServeException error) {
                assertEquals(each[1], error.getCode());
            }
        }
    }

    @Test(timeout = LIMIT)
    public void cancellingTellsTheServer() throws Exception {
        CountDownLatch cancelled = new CountDownLatch(1);
        try (FakePeer peer = new FakePeer(c -> {
            c.handshake();
            long id = c.next(FrameType.REQUEST).requestId();
            c.send(part(id, FIRST));
            assertEquals(id, c.next(FrameType.CANCEL).requestId());
            cancelled.countDown();
            c.untilClosed();
        }); PocketServe client = peer.client().build()) {
            RecordingCallback<Transcript> callback = new RecordingCallback<>();
            CountDownLatch received = new CountDownLatch(1);
            Call call = client.async().transcribe("m", SOUND, null, segment -> received.countDown(), callback);
            assertTrue(received.await(30, TimeUnit.SECONDS));
            assertFalse(call.isDone());
            call.cancel();
            assertEquals(PocketServeException.CANCELLED, callback.next());
            assertTrue(cancelled.await(30, TimeUnit.SECONDS));
        }
    }

    @Test
    public void tasksRunOneAfterTheOther() {
        ArrayDeque<Runnable> threads = new ArrayDeque<>();
        InOrder inOrder = new InOrder(threads::add);
        List<Integer> ran = new ArrayList<>();
        inOrder.execute(() -> ran.add(1));
        inOrder.execute(() -> {
            ran.add(2);
            throw new IllegalStateException("of the application");
        });
        inOrder.execute(() -> ran.add(3));
        for (int task = 0; task < 3; task++) {
            assertEquals(1, threads.size());
            try {
                threads.remove().run();
            } catch (IllegalStateException error) {
                assertEquals(1, task);
            }
        }
        assertEquals(Arrays.asList(1, 2, 3), ran);
        assertTrue(threads.isEmpty());
    }

    @Test
    public void anExecutorThatWasShutDownDropsTasks() {
        List<Integer> ran = new ArrayList<>();
        boolean[] isShutDown = {true};
        InOrder inOrder = new InOrder(task -> {
            if (isShutDown[0]) {
                throw new RejectedExecutionException();
            }
            task.run();
        });
        inOrder.execute(() -> ran.add(1));
        isShutDown[0] = false;
        inOrder.execute(() -> ran.add(2));
        assertEquals(Arrays.asList(2), ran);
    }

    @Test
    public void wrongArgumentsAreRejectedImmediately() throws Exception {
        try (PocketServe client = PocketServe.builder().token(FakePeer.TOKEN).build()) {
            Runnable[] calls = {
                () -> new TranscribeOptions().temperature(Double.NaN),
                () -> new TranscribeOptions().temperature(1.1),
                () -> new TranscribeOptions().language(""),
                () -> new TranscribeOptions().prompt(null),
                () -> new TranscribeOptions().timeoutMs(0),
                () -> client.async().transcribe("m", null, null, null, new RecordingCallback<>()),
                () -> client.async().transcribe("m", new byte[0], null, null, new RecordingCallback<>()),
                () -> client.async().transcribe("", SOUND, null, null, new RecordingCallback<>()),
            };
            for (Runnable call : calls) {
                try {
                    call.run();
                    fail("a wrong argument was accepted");
                } catch (IllegalArgumentException error) {
                    assertFalse(error.getMessage().isEmpty());
                }
            }
        }
    }
}
