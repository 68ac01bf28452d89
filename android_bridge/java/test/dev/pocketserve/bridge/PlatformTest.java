package dev.pocketserve.bridge;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;
import static org.junit.Assert.fail;

import android.os.Looper;
import java.io.File;
import java.io.IOException;
import java.net.ConnectException;
import java.nio.file.Files;
import org.junit.After;
import org.junit.Test;

/** Restrictions of a phone: the main thread, permissions, unreadable files. */
public class PlatformTest {
    /** Other tests have no main thread. */
    @After
    public void forgetTheMainThread() {
        Looper.setMain(null);
    }

    @Test(timeout = 10_000)
    public void blockingCallsAreRejectedOnTheMainThread() throws Exception {
        Looper.setMain(Thread.currentThread());
        try (PocketServe client = PocketServe.builder().build()) {
            ExpectedFailure.Attempt[] calls = {
                client::models, client::isLive, client::isReady, client::serverMetadata, client::index,
                () -> client.classify("m", new byte[1]), () -> client.isModelReady("m"),
                () -> client.modelMetadata("m"), () -> client.infer("m", Tensor.of("x", new int[1], 1)),
                () -> {
                    client.load("m");
                    return null;
                },
                () -> {
                    client.unload("m");
                    return null;
                },
            };
            for (ExpectedFailure.Attempt call : calls) {
                PocketServeException error = ExpectedFailure.of(PocketServeException.ON_MAIN_THREAD, call);
                assertTrue(error.getMessage(), error.getMessage().contains("async()"));
                assertFalse(error.isRetryable());
            }
        }
    }

    @Test(timeout = 10_000)
    public void otherThreadsAndCallbacksAreAllowed() throws Exception {
        try (FakePeer peer = new FakePeer(c -> c.handshake().serve())) {
            Looper.setMain(new Thread());
            try (PocketServe client = peer.client().build()) {
                assertEquals(1, client.models().size());
            }
            Looper.setMain(Thread.currentThread());
            try (PocketServe client = peer.client().mainThreadCheck(false).build()) {
                assertEquals(1, client.models().size());
            }
            try (PocketServe client = peer.client().build()) {
                java.util.concurrent.CountDownLatch notified = new java.util.concurrent.CountDownLatch(1);
                client.async().isLive(new Callback<Boolean>() {
                    @Override
                    public void onResult(Boolean live) {
                        notified.countDown();
                    }

                    @Override
                    public void onError(PocketServeException error) {
                        fail(error.toString());
                    }
                });
                notified.await();
            }
        }
    }

    @Test
    public void missingPermissionsAreNamed() {
        Exception[] refusals = {
            new IOException("socket failed: EACCES (Permission denied)"),
            new ConnectException("failed to connect to /127.0.0.1 (port 8471): connect failed: EPERM"),
            new IOException("connect", new IOException("Operation not permitted")),
            new SecurityException("Permission denied (missing INTERNET permission?)"),
        };
        for (Exception refusal : refusals) {
            PocketServeException error = Faults.connecting("127.0.0.1", 8471, refusal);
            assertEquals(PocketServeException.LOOPBACK_FORBIDDEN, error.getCode());
            assertTrue(error.getMessage().contains("USE_LOOPBACK_INTERFACE"));
            assertTrue(error.getMessage().contains("INTERNET"));
        }
        assertEquals(PocketServeException.LOOPBACK_FORBIDDEN,
                Faults.hungUp("127.0.0.1", 8471, new IOException("sendto failed: EPERM")).getCode());
    }

    @Test
    public void forbiddenCleartextIsNamed() {
        PocketServeException error = Faults.connecting(
                "127.0.0.1", 8470, new IOException("Cleartext HTTP traffic to 127.0.0.1 not permitted"));
        assertEquals(PocketServeException.CLEARTEXT_FORBIDDEN, error.getCode());
        assertTrue(error.getMessage().contains("network security configuration"));
    }

    @Test
    public void aRefusedConnectionAsksWhetherTheServerRuns() {
        PocketServeException error = Faults.connecting(
                "127.0.0.1", 8471, new ConnectException("failed to connect: ECONNREFUSED (Connection refused)"));
        assertEquals(PocketServeException.SERVER_UNREACHABLE, error.getCode());
        assertTrue(error.getMessage().contains("is the server running?"));
        assertTrue(error.getMessage().contains("127.0.0.1:8471"));
    }

    @Test
    public void tokensComeFromFiles() throws Exception {
        File file = File.createTempFile("token", "");
        try {
            Files.write(file.toPath(), "  abc123\n".getBytes(FakePeer.UTF_8));
            assertEquals("abc123", TokenFile.read(file));
            for (String bad : new String[] {"", " \n", "two words", "l\u00e4ng", new String(new char[5000])}) {
                Files.write(file.toPath(), bad.getBytes(FakePeer.UTF_8));
                ExpectedFailure.of(PocketServeException.TOKEN_UNREADABLE, () -> TokenFile.read(file));
            }
        } finally {
            assertTrue(file.delete());
        }
        PocketServeException error = ExpectedFailure.of(PocketServeException.TOKEN_UNREADABLE,
                () -> PocketServe.builder().tokenFile(file).build());
        assertTrue(error.getMessage(), error.getMessage().contains("pocketserve token"));
    }

    @Test
    public void wrongSettingsAreRejected() {
        ExpectedFailure.Attempt[] wrong = {
            () -> PocketServe.builder().socketPort(0), () -> PocketServe.builder().httpPort(65_536),
            () -> PocketServe.builder().timeoutMs(0), () -> PocketServe.builder().connectTimeoutMs(-1),
            () -> PocketServe.builder().retries(-1), () -> PocketServe.builder().maxAnswerBytes(0),
            () -> PocketServe.builder().pingIntervalMs(0), () -> PocketServe.builder().token(" ").build(),
            () -> PocketServe.builder().token("a\nb").build(), () -> PocketServe.builder().token("\u00fc").build(),
        };
        for (ExpectedFailure.Attempt attempt : wrong) {
            try {
                attempt.run();
                fail("taken");
            } catch (IllegalArgumentException expected) {
                assertFalse(expected.getMessage().isEmpty());
            } catch (Exception other) {
                throw new AssertionError(other);
            }
        }
    }
}
