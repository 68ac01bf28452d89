package dev.pocketserve.bridge;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Random;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.Test;

/** An unreachable server: how often and how long calls are retried, and what ends the wait. No time passes here. */
public class RetryingLinkTest {
    private static final int LIMIT = 30_000;
    private static final int WINDOW_MS = 5000;
    private final FakeClock clock = new FakeClock();
    private final Server server = new Server();
    private final RetryingLink link = new RetryingLink(server, WINDOW_MS, clock);

    /** Follows a plan for the first attempts, then always answers. */
    private static final class Server implements Link {
        final Deque<PocketServeException> plan = new ArrayDeque<>();
        PocketServeException always;
        int attempts;
        int refusals;

        @Override
        public synchronized Answer exchange(Request request, Deadline deadline, Cancellation cancellation)
                throws PocketServeException {
            attempts++;
            if (refusals > 0) {
                refusals--;
                String body = "{\"error\":\"the server is shutting down\",\"code\":\"SHUTTING_DOWN\"}";
                return new Answer(503, "application/json", body.length(), body.getBytes(FakePeer.UTF_8), 1000);
            }
            PocketServeException fault = plan.isEmpty() ? always : plan.poll();
            if (fault != null) {
                throw fault;
            }
            return new Answer(200, "application/json", 2, "{}".getBytes(FakePeer.UTF_8), -1);
        }

        @Override
        public void close() {
            always = Faults.closed();
        }
    }

    private static PocketServeException away() {
        return Faults.connecting("127.0.0.1", 8471, new java.net.ConnectException("refused"));
    }

    private Answer ask(Request request) throws PocketServeException {
        return link.exchange(request, Deadline.in(30_000, clock), new Cancellation());
    }

    private Answer ask() throws PocketServeException {
        return ask(Request.get("/v2/models"));
    }

    @Test(timeout = LIMIT)
    public void aServerThatReturnsIsFoundSoon() throws Exception {
        ask();
        for (int i = 0; i < 5; i++) {
            server.plan.add(away());
        }
        assertEquals(200, ask().status);
        // The failed attempt and five more, because the first pauses are short.
        assertEquals(1 + 6, server.attempts);
        assertEquals(5, clock.waits.size());
        assertTrue(clock.waits.toString(), clock.waits.get(0) <= 50 && clock.totalWaitMs() <= 400);
    }

    @Test(timeout = LIMIT)
    public void retriesContinueUntilTheWindowEnds() throws Exception {
        ask();
        server.always = away();
        ExpectedFailure.of(PocketServeException.SERVER_UNREACHABLE, this::ask);
        assertEquals(WINDOW_MS, clock.totalWaitMs());
        assertTrue(server.attempts + " attempts", server.attempts >= 20 && server.attempts <= 40);
    }

    @Test(timeout = LIMIT)
    public void theCallersTimeoutAlsoApplies() throws Exception {
        ask();
        server.always = away();
        ExpectedFailure.of(PocketServeException.SERVER_UNREACHABLE,
                () -> link.exchange(Request.get("/v2"), Deadline.in(120, clock), new Cancellation()));
        assertEquals(120, clock.totalWaitMs());
    }

    /** In Java, a wait of 0 never ends. */
    @Test(timeout = LIMIT)
    public void noWaitIsEndlessIfTimePassesBetweenTwoChecks() throws Exception {
        FakeClock passing = new FakeClock() {
            @Override
            synchronized long nanos() {
                pass(1);
                return super.nanos();
            }

            @Override
            void await(Object monitor, long ms) throws InterruptedException {
                super.await(monitor, ms);
                pass(-Math.min(2, ms - 1)); // it ends a little early
            }
        };
        RetryingLink link = new RetryingLink(server, WINDOW_MS, passing);
        link.exchange(Request.get("/v2"), Deadline.in(30_000, passing), new Cancellation());
        server.always = away();
        ExpectedFailure.of(PocketServeException.SERVER_UNREACHABLE,
                () -> link.exchange(Request.get("/v2"), Deadline.in(30_000, passing), new Cancellation()));
        assertFalse(passing.waits.toString(), passing.waits.contains(0L));
    }

    @Test(timeout = LIMIT)
    public void onlyASmallPartOfTheOutageIsSpentWaiting() {
        for (int seed = 0; seed < 50; seed++) {
            Backoff pauses = Backoff.whileUnreachable(new Random(seed));
            long away = 0;
            for (int i = 0; i < 60; i++) {
                long pause = pauses.nextMs();
                assertTrue(pause + " ms after " + away, pause >= 37 && pause <= Math.max(50, 50 + away / 6));
                assertTrue(pause <= 250);
                away += pause;
            }
        }
    }

    /** As in a graceful reload, where another process replaces the first. */
    @Test(timeout = LIMIT)
    public void inferenceIsRetriedWhileTheServerShutsDown() throws Exception {
        Request inference = Request.postRaw("/predictions/m", new byte[0], "application/octet-stream").allowFallback();
        server.refusals = 3;
        assertEquals(200, ask(inference).status);
        assertEquals(4, server.attempts);
        long before = clock.totalWaitMs();
        server.refusals = Integer.MAX_VALUE;
        ExpectedFailure.of("SHUTTING_DOWN", () -> ask(inference));
        assertEquals(WINDOW_MS, clock.totalWaitMs() - before);
    }

    @Test(timeout = LIMIT)
    public void otherCallsAreNotRetriedWhileTheServerShutsDown() throws Exception {
        server.refusals = 1;
        assertEquals(503, ask(Request.get("/v2/health/ready")).status);
        Request step = Request.postRaw("/predictions/m", new byte[0], "application/octet-stream").allowFallback().once();
        server.refusals = 1;
        ExpectedFailure.of("SHUTTING_DOWN", () -> ask(step));
        assertEquals(0, clock.waits.size());
    }

    @Test(timeout = LIMIT)
    public void twoClientsDoNotRetryAtTheSameTime() {
        Backoff first = Backoff.whileUnreachable(new Random(1));
        Backoff other = Backoff.whileUnreachable(new Random(2));
        int different = 0;
        for (int i = 0; i < 20; i++) {
            different += first.nextMs() == other.nextMs() ? 0 : 1;
        }
        assertTrue(different > 10);
    }

    @Test(timeout = LIMIT)
    public void whatIsNotWaitedFor() throws Exception {
        server.plan.add(away());
        ExpectedFailure.of(PocketServeException.SERVER_UNREACHABLE, this::ask); // it has never answered
        ask();
        for (Request request : new Request[] {Request.get("/v2").once(), Request.get("/v2").withoutToken()}) {
            server.plan.add(away());
            ExpectedFailure.of(PocketServeException.SERVER_UNREACHABLE, () -> ask(request));
        }
        server.plan.add(Faults.closed());
        ExpectedFailure.of(PocketServeException.CLOSED, this::ask);
        assertEquals(0, clock.waits.size());
    }

    /** Lets a second thread act while the first waits. */
    private static final class StoppedClock extends Clock {
        final BlockingQueue<Object> waiting = new LinkedBlockingQueue<>();

        @Override
        long nanos() {
            return 0;
        }

        @Override
        void await(Object monitor, long ms) throws InterruptedException {
            waiting.add(monitor);
            monitor.wait();
        }
    }

    private interface Act {
        void on(RetryingLink link, Cancellation cancellation) throws Exception;
    }

    /** Returns the outcome of a call that would pause forever, after another event. */
    private String outcome(Act act) throws Exception {
        StoppedClock stopped = new StoppedClock();
        RetryingLink link = new RetryingLink(server, WINDOW_MS, stopped);
        Cancellation cancellation = new Cancellation();
        BlockingQueue<String> outcomes = new LinkedBlockingQueue<>();
        link.exchange(Request.get("/v2"), Deadline.in(1, stopped), new Cancellation());
        server.plan.add(away());
        Thread thread = new Thread(() -> {
            try {
                link.exchange(Request.get("/v2"), Deadline.in(60_000, stopped), cancellation);
                outcomes.add("answered");
            } catch (PocketServeException error) {
                outcomes.add(error.getCode());
            }
        });
        thread.start();
        stopped.waiting.poll(10, TimeUnit.SECONDS);
        act.on(link, cancellation);
        String outcome = outcomes.poll(10, TimeUnit.SECONDS);
        thread.join(10_000);
        return outcome;
    }

    @Test(timeout = LIMIT)
    public void cancellingEndsTheWait() throws Exception {
        assertEquals(PocketServeException.CANCELLED, outcome((link, cancellation) -> cancellation.cancel()));
    }

    @Test(timeout = LIMIT)
    public void closingEndsTheWait() throws Exception {
        assertEquals(PocketServeException.CLOSED, outcome((link, cancellation) -> link.close()));
    }

    @Test(timeout = LIMIT)
    public void theAnswerOfAnotherCallEndsTheWait() throws Exception {
        assertEquals("answered", outcome((link, cancellation) ->
                link.exchange(Request.get("/v2"), Deadline.in(1), new Cancellation())));
    }
}
