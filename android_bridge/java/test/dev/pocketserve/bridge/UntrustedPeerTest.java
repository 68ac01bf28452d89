package dev.pocketserve.bridge;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import dev.pocketserve.bridge.wire.Frame;
import dev.pocketserve.bridge.wire.FrameEncoder;
import dev.pocketserve.bridge.wire.FrameType;
import java.io.EOFException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.Test;

/** A program that listens on the server's port gets a HELLO, at most an AUTH, and never a request. */
public class UntrustedPeerTest {
    private static final int LIMIT = 30_000;
    private static final String GOOD = "{\"v\":1,\"nonce\":\"00112233445566778899aabbccddeeff\",\"auth\":\"hmac-sha256\"}";

    private static PocketServeException meet(String code, FakePeer.Script script) throws Exception {
        try (FakePeer peer = new FakePeer(script); PocketServe client = peer.client().build()) {
            PocketServeException error = ExpectedFailure.of(code, () -> client.classify("secret", new byte[10]));
            assertEquals(1, peer.accepted());
            return error;
        }
    }

    /** Every other frame is a leak. */
    private static void expectNothingMore(FakePeer.Connection connection) throws Exception {
        try {
            Frame frame = connection.next();
            assertEquals("a request was sent to an unproven peer", FrameType.ERROR, frame.type());
        } catch (EOFException clientLeft) {
            return;
        }
    }

    @Test(timeout = LIMIT)
    public void aWrongProofIsRejected() throws Exception {
        String zeros = new String(new char[64]).replace('\0', '0');
        PocketServeException error = meet(PocketServeException.NOT_OUR_SERVER, c -> {
            c.challenge(GOOD);
            c.next();
            c.send(FakePeer.json(FrameType.READY, "{\"proof\":\"" + zeros + "\"," + FakePeer.LIMITS + "}"));
            expectNothingMore(c);
        });
        assertFalse(error.isRetryable());
        assertTrue(error.getMessage(), error.getMessage().contains("no request was sent"));
    }

    @Test(timeout = LIMIT)
    public void aMissingProofIsRejected() throws Exception {
        meet(PocketServeException.NOT_OUR_SERVER, c -> {
            c.challenge(GOOD);
            c.next();
            c.send(FakePeer.json(FrameType.READY, "{" + FakePeer.LIMITS + "}"));
            expectNothingMore(c);
        });
    }

    @Test(timeout = LIMIT)
    public void aReplayedHandshakeIsRejected() throws Exception {
        AtomicReference<byte[]> recorded = new AtomicReference<>();
        FakePeer.Script recording = c -> {
            c.challenge(GOOD);
            String auth = new String(c.next().body(), FakePeer.UTF_8);
            // Sends the client's own proof back, as a peer without the token could.
            recorded.set(FakePeer.json(
                    FrameType.READY, auth.substring(0, auth.length() - 1) + "," + FakePeer.LIMITS + "}"));
            c.send(recorded.get());
            expectNothingMore(c);
        };
        meet(PocketServeException.NOT_OUR_SERVER, recording);
        meet(PocketServeException.NOT_OUR_SERVER, c -> {
            c.challenge(GOOD);
            c.next();
            c.send(recorded.get());
            expectNothingMore(c);
        });
    }

    @Test(timeout = LIMIT)
    public void aServerWithoutAuthIsRejectedByAClientWithAToken() throws Exception {
        meet(PocketServeException.NOT_OUR_SERVER, c -> {
            c.challenge(GOOD.replace("hmac-sha256", "none"));
            expectNothingMore(c);
        });
    }

    @Test(timeout = LIMIT)
    public void anotherVersionIsRejected() throws Exception {
        meet(PocketServeException.UNSUPPORTED_VERSION, c -> {
            c.challenge(GOOD.replace("\"v\":1", "\"v\":0"));
            expectNothingMore(c);
        });
        PocketServeException error = meet(PocketServeException.UNSUPPORTED_VERSION, c -> {
            c.next();
            c.send(FrameEncoder.jsonFrame(FrameType.ERROR, 0, 7,
                    "{\"error\":\"old\",\"code\":\"UNSUPPORTED_VERSION\",\"v\":[2,3]}".getBytes(FakePeer.UTF_8)));
        });
        assertTrue(error.getMessage(), error.getMessage().contains("update"));
    }

    @Test(timeout = LIMIT)
    public void aServerThatDoesNotKnowTheTokenSaysSo() throws Exception {
        PocketServeException error = meet(PocketServeException.TOKEN_UNKNOWN, c -> {
            c.challenge(GOOD);
            c.next();
            c.send(FrameEncoder.jsonFrame(
                    FrameType.ERROR, 0, 6, "{\"error\":\"x\",\"code\":\"UNAUTHORIZED\"}".getBytes(FakePeer.UTF_8)));
        });
        assertTrue(error.getMessage(), error.getMessage().contains("pocketserve token"));
    }

    @Test(timeout = LIMIT)
    public void aClientWithoutATokenCannotAnswer() throws Exception {
        try (FakePeer peer = new FakePeer(c -> {
            c.challenge(GOOD);
            expectNothingMore(c);
        }); PocketServe client = PocketServe.builder().socketPort(peer.port()).build()) {
            ExpectedFailure.of(PocketServeException.TOKEN_UNKNOWN, client::models);
        }
    }

    @Test(timeout = LIMIT)
    public void aServerWithoutTokensServesAClientWithoutOne() throws Exception {
        try (FakePeer peer = new FakePeer(c -> {
            c.challenge(GOOD.replace("hmac-sha256", "none"));
            assertEquals("{}", new String(c.next().body(), FakePeer.UTF_8));
            c.send(FakePeer.json(FrameType.READY, "{" + FakePeer.LIMITS + "}"));
            c.serve();
        }); PocketServe client = PocketServe.builder().socketPort(peer.port()).build()) {
            assertEquals(1, client.models().size());
        }
    }

    @Test(timeout = LIMIT)
    public void brokenHandshakesAreRejected() throws Exception {
        String[] malformed = {
            "{\"v\":1,\"v\":1,\"nonce\":\"00112233445566778899aabbccddeeff\",\"auth\":\"hmac-sha256\"}",
            GOOD.replace("ff\"", "FF\""), GOOD.replace("\"v\":1", "\"v\":1.0"), GOOD.replace("hmac-sha256", "plain"),
            GOOD + "x", "[]", "{}", "",
        };
        for (String challenge : malformed) {
            meet(PocketServeException.NOT_OUR_SERVER, c -> {
                c.challenge(challenge);
                expectNothingMore(c);
            });
        }
    }

    @Test(timeout = LIMIT)
    public void otherProtocolsAreReported() throws Exception {
        PocketServeException error = meet(PocketServeException.NOT_OUR_SERVER, c -> {
            c.next();
            c.send("HTTP/1.1 400 Bad Request\r\n\r\n".getBytes(FakePeer.UTF_8));
            expectNothingMore(c);
        });
        assertTrue(error.getMessage(), error.getMessage().contains("socket port"));
    }

    @Test(timeout = LIMIT)
    public void anUnauthenticatedPeerCannotUseMuchMemory() throws Exception {
        byte[] header = new byte[24];
        FrameEncoder.putHeader(header, FrameType.CHALLENGE, 0, 0, 0, 0, 0x7fffffff, 0x7fffffff);
        PocketServeException error = meet(PocketServeException.NOT_OUR_SERVER, c -> {
            c.next();
            c.send(header);
            expectNothingMore(c);
        });
        assertTrue(error.getMessage(), error.getMessage().contains("at most"));
    }

    @Test(timeout = LIMIT)
    public void framesBeforeReadyAreRejected() throws Exception {
        for (int type : new int[] {FrameType.READY, FrameType.PING, FrameType.HELLO, 0x80}) {
            meet(PocketServeException.NOT_OUR_SERVER, c -> {
                c.next();
                c.send(FrameEncoder.emptyFrame(type, 0, 0));
                expectNothingMore(c);
            });
        }
    }

    @Test(timeout = LIMIT)
    public void silenceIsBounded() throws Exception {
        try (FakePeer peer = new FakePeer(c -> c.untilClosed());
                PocketServe client = peer.client().timeoutMs(200).build()) {
            PocketServeException error = ExpectedFailure.of(PocketServeException.SERVER_UNREACHABLE, client::models);
            assertTrue(error.getMessage(), error.getMessage().contains("frozen"));
        }
    }

    @Test(timeout = LIMIT)
    public void aSlowPeerIsBoundedToo() throws Exception {
        try (FakePeer peer = new FakePeer(c -> {
            c.next();
            byte[] challenge = FakePeer.json(FrameType.CHALLENGE, GOOD);
            // Less than a whole frame, then nothing.
            c.send(java.util.Arrays.copyOf(challenge, 30));
            c.untilClosed();
        }); PocketServe client = peer.client().timeoutMs(200).build()) {
            ExpectedFailure.of(PocketServeException.SERVER_UNREACHABLE, client::models);
        }
    }

    @Test(timeout = LIMIT)
    public void aPeerThatHangsUpIsReportedAsSuch() throws Exception {
        meet(PocketServeException.SERVER_UNREACHABLE, c -> c.next());
        meet(PocketServeException.SERVER_UNREACHABLE, c -> {
            c.next();
            c.reset();
        });
    }

    @Test(timeout = LIMIT)
    public void aFullServerSaysSo() throws Exception {
        PocketServeException error = meet("TOO_MANY_CONNECTIONS", c -> {
            c.next();
            c.send(FrameEncoder.jsonFrame(FrameType.ERROR, 0, 10, "{\"error\":\"8 already\"}".getBytes(FakePeer.UTF_8)));
        });
        assertTrue(error.isRetryable());
    }

    @Test(timeout = LIMIT)
    public void nobodyIsTold() throws Exception {
        int port;
        try (ServerSocket free = new ServerSocket(0, 1, InetAddress.getByName("127.0.0.1"))) {
            port = free.getLocalPort();
        }
        for (Transport way : Transport.values()) {
            try (PocketServe client = PocketServe.builder().socketPort(port).httpPort(port).transport(way)
                    .token(FakePeer.TOKEN).build()) {
                PocketServeException error = ExpectedFailure.of(PocketServeException.SERVER_UNREACHABLE, client::models);
                assertTrue(error.getMessage(), error.getMessage().contains("is the server running?"));
                assertTrue(error.isRetryable());
                assertFalse(client.isLive());
            }
        }
    }
}
