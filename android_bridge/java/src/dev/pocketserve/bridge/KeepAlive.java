package dev.pocketserve.bridge;

import dev.pocketserve.bridge.wire.FrameEncoder;
import dev.pocketserve.bridge.wire.FrameType;
import java.io.IOException;
import java.util.ArrayDeque;
import java.util.Deque;

/** Detects a silent peer, and writes PONG and CANCEL, so that the reading thread never waits.
 *
 * <p>While requests are in progress and nothing arrives for one interval, it sends a PING. If nothing arrives for
 * another interval, the peer counts as dead, for example frozen by Android. Without requests it waits without a
 * timeout, so an idle client uses no CPU.
 */
final class KeepAlive implements Runnable {
    /** The maximum number of small frames that wait to be written; further ones are dropped. */
    private static final int MAX_QUEUED = 256;
    /** A delay that a busy processor doesn't explain: this process was frozen. */
    private static final long FROZEN_MS = 1000;

    private final Connection connection;
    private final FrameWriter writer;
    private final long intervalMs;
    private final Clock clock;
    private final Deque<byte[]> queue = new ArrayDeque<>();
    private volatile boolean dataReceived;
    private boolean stopped;
    private boolean requestStarted;
    private boolean idle;

    /** The watched connection. */
    interface Connection {
        /** Returns whether calls are in progress. */
        boolean isBusy();

        /** Ends the connection and all calls on it. */
        void end(PocketServeException reason);
    }

    KeepAlive(Connection connection, FrameWriter writer, int intervalMs, Clock clock) {
        this.connection = connection;
        this.writer = writer;
        this.intervalMs = intervalMs;
        this.clock = clock;
    }

    /** Records that bytes arrived from the peer. */
    void received() {
        dataReceived = true;
    }

    /** Records the first request in progress. Cheap: wakes the thread only if it waits without a timeout. */
    synchronized void begin() {
        dataReceived = true;
        requestStarted = true;
        if (idle) {
            notifyAll();
        }
    }

    void pong(long opaque) {
        enqueue(FrameEncoder.emptyFrame(FrameType.PONG, 0, opaque));
    }

    void cancel(long id) {
        enqueue(FrameEncoder.emptyFrame(FrameType.CANCEL, id, 0));
    }

    private synchronized void enqueue(byte[] frame) {
        if (queue.size() < MAX_QUEUED) {
            queue.add(frame);
            notifyAll();
        }
    }

    synchronized void stop() {
        stopped = true;
        notifyAll();
    }

    @Override
    public void run() {
        try {
            boolean pinged = false;
            while (true) {
                byte[] frame = next();
                if (frame != null) {
                    writer.small(frame, intervalMs);
                } else if (isStopped()) {
                    return;
                } else if (dataReceived || !connection.isBusy()) {
                    dataReceived = false;
                    pinged = false;
                    sleepWhileIdle();
                } else if (pinged) {
                    connection.end(Faults.connectionLost("the server fell silent; Android may have frozen it", null));
                } else {
                    // A write that takes a whole interval counts as an unanswered PING.
                    pinged = true;
                    writer.small(FrameEncoder.emptyFrame(FrameType.PING, 0, 1), intervalMs);
                }
            }
        } catch (IOException error) {
            connection.end(Faults.connectionLost("writing: " + error.getMessage(), error));
        } catch (InterruptedException error) {
            connection.end(Faults.connectionLost("its thread was interrupted", error));
        }
    }

    private synchronized boolean isStopped() {
        return stopped;
    }

    /** A frame to write, or null after one interval, or once stopped. */
    private synchronized byte[] next() throws InterruptedException {
        long ends = clock.nanos() + intervalMs * 1_000_000;
        while (!stopped && queue.isEmpty()) {
            long leftMs = (ends - clock.nanos() + 999_999) / 1_000_000;
            if (leftMs <= 0) {
                // This process itself was frozen and hasn't yet read the server's frames.
                if (-leftMs >= Math.max(intervalMs, FROZEN_MS)) {
                    dataReceived = true;
                }
                return null;
            }
            clock.await(this, leftMs);
        }
        return stopped ? null : queue.poll();
    }

    /** Waits for a request. Returns at once if one began since the last call. */
    private void sleepWhileIdle() throws InterruptedException {
        if (connection.isBusy()) {
            return;
        }
        synchronized (this) {
            idle = true;
            while (!requestStarted && !stopped && queue.isEmpty()) {
                wait();
            }
            idle = false;
            requestStarted = false;
        }
    }
}
