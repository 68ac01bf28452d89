package dev.pocketserve.bridge;

import java.io.IOException;
import java.net.Socket;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;

/** Keeps one connection, opened when needed and reopened after it breaks. */
final class SocketLink implements Link {
    /** The maximum number of attempts after the server rejected a request without starting it. */
    private static final int MAX_REJECTED = 8;

    private final Settings settings;
    private final Random random = new Random();
    /** Held while a caller opens a connection; other callers wait. */
    private final ReentrantLock opening = new ReentrantLock();
    private volatile SocketConnection current;
    /** The socket that is being opened, so that closing doesn't wait for a silent peer. */
    private volatile Socket connecting;
    private volatile boolean closed;

    SocketLink(Settings settings) {
        this.settings = settings;
    }

    @Override
    public Answer exchange(Request request, Deadline deadline, Cancellation cancellation)
            throws PocketServeException {
        Backoff backoff = null;
        for (int attempt = 0;; attempt++) {
            try {
                return connection(deadline, cancellation).exchange(request, deadline, cancellation);
            } catch (ConnectionBrokenException failure) {
                int maxRetries = failure.isNotStarted() ? MAX_REJECTED : request.isIdempotent() ? settings.retries : 0;
                if (closed || attempt >= maxRetries || deadline.isOver() || !failure.fault().isRetryable()) {
                    throw failure.fault();
                }
                // The first retry is immediate, because usually an idle connection was closed.
                if (backoff == null) {
                    backoff = Backoff.whileBusy(random);
                } else {
                    pause(backoff.nextMs(), deadline);
                }
            }
        }
    }

    private static void pause(long ms, Deadline deadline) throws PocketServeException {
        try {
            Thread.sleep(Math.min(ms, deadline.remainingMs()));
        } catch (InterruptedException error) {
            throw Faults.interrupted(error);
        }
    }

    private SocketConnection connection(Deadline deadline, Cancellation cancellation) throws PocketServeException {
        SocketConnection open = current;
        if (!closed && open != null && open.isUsable()) {
            return open;
        }
        try {
            if (!opening.tryLock(Math.max(0, deadline.remainingNs()), TimeUnit.NANOSECONDS)) {
                throw deadline.exceeded();
            }
        } catch (InterruptedException error) {
            throw Faults.interrupted(error);
        }
        try {
            open = current;
            if (closed) {
                throw Faults.closed();
            }
            if (open == null || !open.isUsable()) {
                open = open(deadline, cancellation);
            }
            return open;
        } finally {
            opening.unlock();
        }
    }

    private SocketConnection open(Deadline deadline, Cancellation cancellation) throws PocketServeException {
        Handshaker handshaker = new Handshaker(settings);
        performHandshake(handshaker, deadline, cancellation);
        try {
            SocketConnection opened = new SocketConnection(handshaker, settings.pingIntervalMs);
            current = opened;
            if (closed) {
                opened.end(Faults.closed());
            }
            return opened;
        } catch (IOException error) {
            Handshaker.closeQuietly(handshaker.socket);
            throw Faults.hungUp(settings.host, settings.socketPort, error);
        }
    }

    /** Waits; ends early if the call is cancelled or the client is closed. */
    private void performHandshake(Handshaker handshaker, Deadline deadline, Cancellation cancellation)
            throws PocketServeException {
        final Socket socket = handshaker.socket;
        connecting = socket;
        cancellation.onCancel(new Runnable() {
            @Override
            public void run() {
                Handshaker.closeQuietly(socket);
            }
        });
        try {
            if (closed) {
                throw Faults.closed();
            }
            handshaker.run(deadline);
        } catch (PocketServeException error) {
            if (closed) {
                throw Faults.closed();
            }
            throw cancellation.isCancelled() ? Cancellation.cancelled(error) : error;
        } finally {
            cancellation.onCancel(null);
            connecting = null;
        }
    }

    @Override
    public void close() {
        closed = true;
        Socket pendingSocket = connecting;
        if (pendingSocket != null) {
            Handshaker.closeQuietly(pendingSocket);
        }
        SocketConnection open = current;
        if (open != null) {
            open.end(Faults.closed());
        }
    }
}
