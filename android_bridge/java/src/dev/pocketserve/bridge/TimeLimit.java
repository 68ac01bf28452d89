package dev.pocketserve.bridge;

import java.net.HttpURLConnection;
import java.util.concurrent.CancellationException;
import java.util.concurrent.Future;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;

/**
 * Disconnects HTTP calls that are expired or cancelled. The platform's timeouts apply to single reads, so they don't
 * stop a peer that sends a byte now and then, or one that never reads.
 */
final class TimeLimit {
    /** The interval of further disconnects, because the platform may reopen the connection after the first. */
    private static final long REPEAT_MS = 100;

    private final ScheduledThreadPoolExecutor timer = new ScheduledThreadPoolExecutor(1, new ThreadFactory() {
        @Override
        public Thread newThread(Runnable work) {
            Thread thread = new Thread(work, "pocketserve-limit");
            thread.setDaemon(true);
            return thread;
        }
    });

    TimeLimit() {
        timer.setRemoveOnCancelPolicy(true);
        timer.setContinueExistingPeriodicTasksAfterShutdownPolicy(true); // also for a call that is ending
        timer.setKeepAliveTime(10, TimeUnit.SECONDS);
        timer.allowCoreThreadTimeOut(true);
    }

    /** Disconnects at the deadline; end the returned limit when the call has ended. */
    Limit disconnect(HttpURLConnection connection, Deadline deadline) throws PocketServeException {
        try {
            Limit limit = new Limit(connection);
            limit.atDeadline = repeat(limit, deadline.remainingMs());
            return limit;
        } catch (RejectedExecutionException closed) {
            throw Faults.closed();
        }
    }

    private Future<?> repeat(Runnable work, long delayMs) {
        return timer.scheduleWithFixedDelay(work, delayMs, REPEAT_MS, TimeUnit.MILLISECONDS);
    }

    /**
     * The limit of one call. Cancelling disconnects, except while a body is read that another thread must not close.
     */
    final class Limit implements Runnable {
        private final HttpURLConnection connection;
        private Future<?> atDeadline;
        private volatile boolean ended;
        private volatile boolean givenUp;
        private volatile boolean reading;

        Limit(HttpURLConnection connection) {
            this.connection = connection;
        }

        @Override
        public void run() {
            giveUp();
            if (ended || reading) {
                throw new CancellationException("nothing is left to do"); // ends the repeated task
            }
        }

        /** Disconnects once, unless the reader checks the cancellation itself. */
        void giveUp() {
            givenUp = true;
            if (!reading && !ended) {
                disconnect();
            }
        }

        /** Disconnects now, and repeatedly until the call ends. */
        void giveUpRepeatedly() {
            giveUp();
            try {
                repeat(this, REPEAT_MS);
            } catch (RejectedExecutionException closed) {
                return; // the call ends at its deadline
            }
        }

        /**
         * Leaves the connection to the thread that reads the body, which checks {@link #isGivenUp()} from now on. If
         * another thread closed the body, the JDK would read the rest under the stream's lock, and a slow peer could
         * block the reader forever.
         */
        void startReading() {
            reading = true; // set before the reader checks the other flag, since giveUp() sets its own first
        }

        boolean isGivenUp() {
            return givenUp;
        }

        void end() {
            ended = true;
            atDeadline.cancel(false);
        }

        /** Disconnects a failed call; a cancelled one on a thread that may wait for the first disconnect. */
        void abandon() {
            if (!givenUp) {
                disconnect();
                return;
            }
            Thread thread = new Thread("pocketserve-disconnect") {
                @Override
                public void run() {
                    disconnect();
                }
            };
            thread.setDaemon(true);
            thread.start();
        }

        private void disconnect() {
            try {
                connection.disconnect();
            } catch (RuntimeException another) {
                return; // another thread disconnected first; the JDK does not expect two
            }
        }
    }

    void close() {
        timer.shutdown();
    }
}
