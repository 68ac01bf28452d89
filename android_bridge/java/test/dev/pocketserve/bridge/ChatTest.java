package dev.pocketserve.bridge;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertTrue;
import static org.junit.Assert.fail;

import dev.pocketserve.bridge.wire.Frame;
import dev.pocketserve.bridge.wire.FrameEncoder;
import dev.pocketserve.bridge.wire.FrameType;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.json.JSONObject;
import org.junit.Test;

/** Chats: answers in parts, complete, broken and cancelled, over both transports. */
public class ChatTest {
    private static final int LIMIT = 30_000;
    private static final String HELLO = event("\"delta\":{\"content\":\"Hel\"}") + event("\"delta\":{\"content\":\"lo\"}");
    private static final String END = event("\"delta\":{},\"finish_reason\":\"stop\"")
            + "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2}}\n\n";
    private static final String DONE = "data: [DONE]\n\n";
    private static final List<ChatMessage> QUESTION = Collections.singletonList(ChatMessage.user("Grüß"));

    private static String event(String members) {
        return "data: {\"choices\":[{\"index\":0," + members + "}]}\n\n";
    }

    private static byte[] part(long id, String text) {
        byte[] body = text.getBytes(FakePeer.UTF_8);
        byte[] frame = new byte[FrameEncoder.HEADER_BYTES + body.length];
        FrameEncoder.putHeader(frame, FrameType.PART, id, 0, 0, 0, 0, body.length);
        System.arraycopy(body, 0, frame, FrameEncoder.HEADER_BYTES, body.length);
        return frame;
    }

    private static void check(ChatAnswer answer) {
        assertEquals("Hello", answer.getText());
        assertEquals("stop", answer.getFinishReason());
        assertEquals(7, answer.getPromptTokens());
        assertEquals(2, answer.getCompletionTokens());
    }

    private static PocketServeException failure(PocketServe client, ChatListener listener) {
        try {
            client.chat("m", QUESTION, null, listener);
        } catch (PocketServeException error) {
            return error;
        }
        throw new AssertionError("the chat had an answer");
    }

    @Test(timeout = LIMIT)
    public void partsAreReceivedAsTheyArrive() throws Exception {
        CountDownLatch heard = new CountDownLatch(1);
        List<JSONObject> requests = new ArrayList<>();
        try (FakePeer peer = new FakePeer(c -> {
            c.handshake();
            Frame request = c.next(FrameType.REQUEST);
            requests.add(new JSONObject(new String(request.body(), FakePeer.UTF_8)));
            c.send(part(request.requestId() + 1, "data: of nobody\n\n"));
            int cut = HELLO.length() / 2 + 3;
            c.send(part(request.requestId(), HELLO.substring(0, cut)));
            assertTrue(heard.await(10, TimeUnit.SECONDS)); // the second part is sent after the first was received
            c.send(part(request.requestId(), HELLO.substring(cut) + END));
            c.respond(request.requestId(), 200, DONE);
            c.untilClosed();
        }); PocketServe client = peer.client().build()) {
            List<String> pieces = new ArrayList<>();
            ChatOptions options = new ChatOptions().maxTokens(5).temperature(0).seed(1).stop("x").field("top_p", 0.5);
            check(client.chat("m", QUESTION, options, piece -> {
                pieces.add(piece);
                heard.countDown();
            }));
            assertEquals(Arrays.asList("Hel", "lo"), pieces);
        }
        JSONObject body = requests.get(0);
        assertEquals("m", body.getString("model"));
        assertEquals("Grüß", body.getJSONArray("messages").getJSONObject(0).getString("content"));
        assertTrue(body.getBoolean("stream"));
        assertEquals(5, body.getInt("max_tokens"));
        assertEquals("x", body.getJSONArray("stop").getString(0));
    }

    @Test(timeout = LIMIT)
    public void aServerWithoutPartsAnswersWhole() throws Exception {
        try (FakePeer peer = new FakePeer(FakePeer.answering(HELLO + END + DONE));
                PocketServe client = peer.client().build()) {
            check(client.chat("m", QUESTION, null, null));
        }
    }

    @Test(timeout = LIMIT)
    public void anErrorAfterPartsEndsTheAnswer() throws Exception {
        try (FakePeer peer = new FakePeer(c -> {
            c.handshake();
            long id = c.next(FrameType.REQUEST).requestId();
            c.send(part(id, HELLO));
            c.respond(id, 400, "{\"error\":{\"message\":\"too long\",\"code\":\"context_length_exceeded\"}}");
            c.untilClosed();
        }); PocketServe client = peer.client().build()) {
            List<String> pieces = new ArrayList<>();
            PocketServeException error = failure(client, pieces::add);
            assertEquals("CONTEXT_EXCEEDED", error.getCode());
            assertEquals(400, error.getStatus());
            assertEquals("too long", error.getMessage());
            assertEquals(2, pieces.size());
        }
    }

    @Test(timeout = LIMIT)
    public void aTruncatedAnswerIsAnError() throws Exception {
        try (FakePeer peer = new FakePeer(FakePeer.answering(HELLO)); PocketServe client = peer.client().build()) {
            assertEquals(PocketServeException.CONNECTION_LOST, failure(client, null).getCode());
        }
    }

    @Test(timeout = LIMIT)
    public void eventsThatCannotBeReadEndTheAnswer() throws Exception {
        for (String text : new String[] {"data: {\n\n", "data: [1]\n\n", "data: " + "[".repeat(50_000) + "\n\n"}) {
            try (FakePeer peer = new FakePeer(FakePeer.answering(text)); PocketServe client = peer.client().build()) {
                assertEquals(PocketServeException.BAD_ANSWER, failure(client, null).getCode());
            }
        }
    }

    @Test(timeout = LIMIT)
    public void cancellingTellsTheServer() throws Exception {
        CountDownLatch cancelled = new CountDownLatch(1);
        try (FakePeer peer = new FakePeer(c -> {
            c.handshake();
            long id = c.next(FrameType.REQUEST).requestId();
            c.send(part(id, HELLO));
            assertEquals(id, c.next(FrameType.CANCEL).requestId());
            cancelled.countDown();
            c.untilClosed();
        }); PocketServe client = peer.client().build()) {
            RecordingCallback<ChatAnswer> callback = new RecordingCallback<>();
            CountDownLatch heard = new CountDownLatch(1);
            Call call = client.async().chat("m", QUESTION, null, piece -> heard.countDown(), callback);
            assertTrue(heard.await(10, TimeUnit.SECONDS));
            assertFalse(call.isDone());
            call.cancel();
            assertEquals(PocketServeException.CANCELLED, callback.next());
            assertTrue(cancelled.await(10, TimeUnit.SECONDS));
        }
    }

    @Test(timeout = LIMIT)
    public void aListenerThatThrowsEndsTheAnswer() throws Exception {
        ChatListener listener = piece -> {
            throw new IllegalStateException("no more");
        };
        try (FakePeer peer = new FakePeer(c -> {
            c.handshake();
            long id = c.next(FrameType.REQUEST).requestId();
            c.send(part(id, HELLO));
            c.next(FrameType.CANCEL);
            c.untilClosed();
        }); PocketServe client = peer.client().build()) {
            PocketServeException error = failure(client, listener);
            assertEquals(PocketServeException.CANCELLED, error.getCode());
            assertEquals("no more", error.getCause().getMessage());
        }
    }

    @Test(timeout = LIMIT)
    public void anAnswerOverTheClientsLimitEnds() throws Exception {
        CountDownLatch cancelled = new CountDownLatch(1);
        try (FakePeer peer = new FakePeer(c -> {
            c.handshake();
            long id = c.next(FrameType.REQUEST).requestId();
            c.send(part(id, HELLO));
            for (int i = 0; i < 3; i++) {
                c.send(part(id, ":" + " ".repeat(4000)));
            }
            c.next(FrameType.CANCEL);
            cancelled.countDown();
            c.untilClosed();
        }); PocketServe client = peer.client().maxAnswerBytes(8192).build()) {
            PocketServeException error = failure(client, piece -> {
                try {
                    cancelled.await(10, TimeUnit.SECONDS); // the listener is slower than the server
                } catch (InterruptedException interrupted) {
                    throw new IllegalStateException(interrupted);
                }
            });
            assertEquals(PocketServeException.BAD_ANSWER, error.getCode());
        }
    }

    @Test(timeout = LIMIT)
    public void httpBringsTheSame() throws Exception {
        CountDownLatch heard = new CountDownLatch(1);
        try (ServerSocket listener = new ServerSocket(0, 5, InetAddress.getByName("127.0.0.1"));
                PocketServe client = PocketServe.builder().transport(Transport.HTTP)
                        .httpPort(listener.getLocalPort()).token(FakePeer.TOKEN).build()) {
            Thread server = new Thread(() -> {
                try (Socket socket = listener.accept()) {
                    InputStream in = socket.getInputStream();
                    OutputStream out = socket.getOutputStream();
                    in.read(new byte[65_536]);
                    out.write("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
                            .getBytes(FakePeer.UTF_8));
                    out.write(HELLO.getBytes(FakePeer.UTF_8));
                    assertTrue(heard.await(10, TimeUnit.SECONDS));
                    out.write((END + DONE).getBytes(FakePeer.UTF_8));
                } catch (Exception error) {
                    throw new IllegalStateException(error);
                }
            });
            server.start();
            List<String> pieces = new ArrayList<>();
            check(client.chat("m", QUESTION, null, piece -> {
                pieces.add(piece);
                heard.countDown();
            }));
            assertEquals(Arrays.asList("Hel", "lo"), pieces);
            server.join();
        }
    }

    @Test
    public void wrongArgumentsAreRejectedImmediately() throws Exception {
        try (PocketServe client = PocketServe.builder().token(FakePeer.TOKEN).build()) {
            Runnable[] calls = {
                () -> new ChatOptions().field("stream", false),
                () -> new ChatOptions().field("top_p", null),
                () -> new ChatOptions().temperature(Double.NaN),
                () -> new ChatOptions().timeoutMs(0),
                () -> ChatMessage.user(null),
                () -> client.async().chat("m", Collections.emptyList(), null, null, new RecordingCallback<>()),
                () -> client.async().chat("", QUESTION, null, null, new RecordingCallback<>()),
            };
            for (Runnable call : calls) {
                try {
                    call.run();
                    fail("a wrong argument was taken");
                } catch (IllegalArgumentException error) {
                    assertFalse(error.getMessage().isEmpty());
                }
            }
            assertNull(new RecordingCallback<Void>().events.poll());
        }
    }
}
