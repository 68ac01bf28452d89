package dev.pocketserve.bridge;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertSame;
import static org.junit.Assert.assertTrue;

import org.junit.Test;

/**
 * Two servers under one deadline: which one gets the call, for how long, and whose error is thrown. No time passes
 * here.
 */
public class FallbackLinkTest {
    private static final int LIMIT = 30_000;
    private final FakeClock clock = new FakeClock();
    private final Server first = new Server();
    private final Server second = new Server();
    private final FallbackLink link = new FallbackLink(first, first, "first:1", second, "second:2");

    /** Takes some time, and then fails, rejects or answers. */
    private final class Server implements Link {
        PocketServeException fault;
        String refusal;
        boolean lostBehindProxy;
        int attempts;
        long allowedMs;
        long takesMs;

        @Override
        public Answer exchange(Request request, Deadline deadline, Cancellation cancellation)
                throws PocketServeException {
            attempts++;
            allowedMs = deadline.remainingMs();
            clock.pass(takesMs);
            if (fault != null) {
                throw fault;
            }
            if (lostBehindProxy) {
                return new Answer(502, "text/plain", 0, "Bad gateway".getBytes(FakePeer.UTF_8), -1);
            }
            String json = refusal == null ? "{}" : "{\"error\":\"no\",\"code\":\"" + refusal + "\"}";
            byte[] body = json.getBytes(FakePeer.UTF_8);
            return new Answer(refusal == null ? 200 : 503, "application/json", body.length, body, -1);
        }

        @Override
        public void close() {
            fault = Faults.closed();
        }
    }

    private Answer ask(Request request) throws PocketServeException {
        return link.exchange(request, Deadline.in(10_000, clock), new Cancellation());
    }

    private Answer ask() throws PocketServeException {
        return ask(Request.get("/v2/models/m").allowFallback());
    }

    private static PocketServeException away() {
        return Faults.connecting("127.0.0.1", 8471, new java.net.ConnectException("refused"));
    }

    @Test(timeout = LIMIT)
    public void theFirstServerHasHalfOfTheTimeAndTheFallbackTheRest() throws Exception {
        first.takesMs = 4000;
        first.fault = away();
        assertEquals("second:2", ask().server);
        assertEquals(5000, first.allowedMs);
        assertEquals(6000, second.allowedMs);
    }

    @Test(timeout = LIMIT)
    public void anAnswerOfTheFirstServerIsUsed() throws Exception {
        assertEquals("first:1", ask().server);
        assertEquals(0, second.attempts);
    }

    @Test(timeout = LIMIT)
    public void aTemporaryErrorUsesTheFallback() throws Exception {
        for (String code : new String[] {"QUEUE_FULL", "LOW_POWER", "SHUTTING_DOWN", "MEMORY_BUDGET"}) {
            first.refusal = code;
            assertEquals("second:2", ask().server);
        }
        first.refusal = "INVALID_TENSOR";
        assertEquals("first:1", ask().server);
        assertEquals(4, second.attempts);
    }

    @Test(timeout = LIMIT)
    public void aLostServerBehindAProxyUsesTheFallbackImmediately() throws Exception {
        first.lostBehindProxy = true;
        assertEquals("second:2", ask().server);
        assertEquals(1, first.attempts);
    }

    @Test(timeout = LIMIT)
    public void theErrorOfTheFirstServerIsThrown() throws Exception {
        first.refusal = "QUEUE_FULL";
        second.fault = away();
        PocketServeException error = ExpectedFailure.of("QUEUE_FULL", this::ask);
        assertTrue(error.isRetryable());
        assertSame(second.fault, error.getSuppressed()[0]);
        second.fault = Faults.closed();
        ExpectedFailure.of(PocketServeException.CLOSED, this::ask);
    }

    @Test(timeout = LIMIT)
    public void callsThatMayNotRunTwiceUseNoFallback() throws Exception {
        first.fault = away();
        ExpectedFailure.of(PocketServeException.SERVER_UNREACHABLE, () -> ask(Request.get("/v2/models")));
        ExpectedFailure.of(PocketServeException.SERVER_UNREACHABLE,
                () -> ask(Request.get("/v2/models/m").allowFallback().once()));
        first.fault = Cancellation.cancelled(null);
        ExpectedFailure.of(PocketServeException.CANCELLED, this::ask);
        assertEquals(0, second.attempts);
    }

    @Test(timeout = LIMIT)
    public void aFallbackCannotHaveAFallback() {
        PocketServe.Builder builder = PocketServe.builder();
        PocketServe.Builder chained = PocketServe.builder().fallback(PocketServe.builder());
        for (PocketServe.Builder wrong : new PocketServe.Builder[] {null, builder, chained}) {
            try {
                builder.fallback(wrong);
            } catch (IllegalArgumentException expected) {
                continue;
            }
            throw new AssertionError("taken");
        }
    }

    @Test(timeout = LIMIT)
    public void aFallbackCannotGetAFallbackLater() throws PocketServeException {
        PocketServe.Builder other = PocketServe.builder();
        PocketServe.Builder builder = PocketServe.builder().fallback(other);
        other.fallback(PocketServe.builder());
        try {
            builder.build();
        } catch (IllegalArgumentException expected) {
            return;
        }
        throw new AssertionError("taken");
    }
}
