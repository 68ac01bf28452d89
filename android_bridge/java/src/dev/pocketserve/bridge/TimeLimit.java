package dev.pocketserve.bridge;

import java.net.HttpURLConnection;
import java.util.concurrent.CancellationException;
import java.util.concurrent.Future;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;

/**
 * Disconnects HTTP calls whose time is over, or which are given up. The platform's timeouts are about single reads: who
 * sends a byte now and then, or never takes what is written, is stopped by none of them.
 */
final class TimeLimit {
    /** A connection that is being opened anew, as after a disconnect before the answer, can be disconnected soon. */
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
        timer.setContinueExistingPeriodicTasksAfterShutdownPolicy(true); // a call that is ending has its limit, too
        timer.setKeepAliveTime(10, TimeUnit.SECONDS);
        timer.allowCoreThreadTimeOut(true);
    }

    /** Disconnects when the deadline has passed; end what this gives when the call has ended. */
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

    /** One call's. Giving it up disconnects, but not while a body is read that another thread must not close. */
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
                throw new CancellationException("nothing is left to do"); // which ends the repetition
            }
        }

        /** Disconnects once, unless the reader is to see it for itself. */
        void giveUp() {
            givenUp = true;
            if (!reading && !ended) {
                disconnect();
            }
        }

        /** Gives up now, and again for as long as the call goes on. */
        void giveUpRepeatedly() {
            giveUp();
            try {
                repeat(this, REPEAT_MS);
            } catch (RejectedExecutionException closed) {
                return; // the call ends at its deadline
            }
        }

        /**
         * Leaves the connection to the thread that reads the body, which asks {@link #isGivenUp()} from now on. The JDK
         * reads on what is left of a body that another thread closes, and holds the stream's lock for as long as the
         * peer sends a byte now and then: the reader would wait for it without end.
         */
        void startReading() {
            reading = true; // before the reader looks at the other one, as giveUp() sets its own first
        }

        boolean isGivenUp() {
            return givenUp;
        }

        void end() {
            ended = true;
            atDeadline.cancel(false);
        }

        /** Disconnects a call that failed; a given up one on a thread that may wait for the first disconnect. */
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
                return; // a second thread was faster: the JDK does not expect two
            }
        }
    }

    void close() {
        timer.shutdown();
    }
}
