package dev.pocketserve.bridge;

import java.net.HttpURLConnection;
import java.util.concurrent.Future;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;

/**
 * Disconnects HTTP calls whose time is over. The platform's timeouts are about single reads: who sends a byte now and
 * then, or never takes what is written, is stopped by none of them.
 */
final class TimeLimit {
    /** A connection that is being opened anew cannot be disconnected yet, but soon can. */
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

    /** Disconnects when the deadline has passed; cancel what this gives when the call has ended. */
    Future<?> disconnect(final HttpURLConnection connection, Deadline deadline) throws PocketServeException {
        try {
            return timer.scheduleWithFixedDelay(new Runnable() {
                @Override
                public void run() {
                    connection.disconnect();
                }
            }, deadline.remainingMs(), REPEAT_MS, TimeUnit.MILLISECONDS);
        } catch (RejectedExecutionException closed) {
            throw Faults.closed();
        }
    }

    void close() {
        timer.shutdown();
    }
}
