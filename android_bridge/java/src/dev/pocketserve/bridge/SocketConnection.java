package dev.pocketserve.bridge;

import dev.pocketserve.bridge.wire.ConnectionLimits;
import dev.pocketserve.bridge.wire.Frame;
import dev.pocketserve.bridge.wire.FrameDecoder;
import dev.pocketserve.bridge.wire.FrameEncoder;
import dev.pocketserve.bridge.wire.FrameType;
import dev.pocketserve.bridge.wire.WireException;
import java.io.IOException;
import java.io.InputStream;
import java.net.Socket;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;

/**
 * An authenticated connection, shared by many calls. One thread reads, and callers write. A second thread detects a
 * silent peer; it sleeps while no request is in progress.
 */
final class SocketConnection implements KeepAlive.Connection {
    private static final long MAX_ID = 0xffffffffL;

    private final Socket socket;
    private final FrameDecoder decoder;
    private final ConnectionLimits limits;
    private final FrameWriter writer;
    private final KeepAlive keepAlive;
    private final int maxAnswerBytes;

    /** Guards the fields below; never held during I/O. */
    private final Object state = new Object();
    private final Map<Long, Entry> inflight = new HashMap<>();
    private final InflightBudget budget;
    private long lastId;
    private boolean draining;
    private PocketServeException closeReason;

    /** A request in progress, or a cancelled one whose answer has not arrived. */
    private static final class Entry {
        private final PendingAnswer pending;
        private final int bytes;

        Entry(int bytes, int maxAnswerBytes) {
            this.pending = new PendingAnswer(maxAnswerBytes);
            this.bytes = bytes;
        }
    }

    SocketConnection(final Handshaker handshaker, int pingIntervalMs) throws IOException {
        this.socket = handshaker.socket;
        this.decoder = handshaker.decoder;
        this.limits = handshaker.limits;
        this.maxAnswerBytes = handshaker.maxAnswerBytes();
        this.writer = new FrameWriter(socket.getOutputStream());
        this.keepAlive = new KeepAlive(this, writer, pingIntervalMs, Clock.SYSTEM);
        this.budget = new InflightBudget(state, limits, pingIntervalMs);
        start("pocketserve-reader", new Runnable() {
            @Override
            public void run() {
                read(handshaker.buffer, handshaker.start, handshaker.end);
            }
        });
        start("pocketserve-keepalive", keepAlive);
    }

    private static void start(String name, Runnable work) {
        Thread thread = new Thread(work, name);
        thread.setDaemon(true);
        thread.start();
    }

    /** Returns whether new requests may be sent here. */
    boolean isUsable() {
        synchronized (state) {
            return closeReason == null && !draining;
        }
    }

    @Override
    public boolean isBusy() {
        synchronized (state) {
            return closeReason == null && budget.hasCallers();
        }
    }

    /**
     * Sends one request and waits for its answer.
     *
     * @throws ConnectionBrokenException if the connection ended first
     * @throws PocketServeException TIMEOUT, CANCELLED, or BODY_TOO_LARGE without having sent anything
     */
    Answer exchange(Request request, Deadline deadline, Cancellation cancellation)
            throws PocketServeException, ConnectionBrokenException {
        if (request.bodyLength > limits.maxFrame()) {
            throw new PocketServeException("BODY_TOO_LARGE", 413, false, -1, "the body has " + request.bodyLength
                    + " bytes; this server takes " + limits.maxFrame() + " at most", null);
        }
        if (request.target.length() > FrameEncoder.MAX_TARGET_BYTES) {
            throw new PocketServeException("INVALID_REQUEST", 400, false, -1, "path and query together have "
                    + request.target.length() + " bytes; the socket takes " + FrameEncoder.MAX_TARGET_BYTES
                    + " at most, so shorten the parameters or use Transport.HTTP", null);
        }
        Entry entry = new Entry(request.bodyLength, maxAnswerBytes);
        long id = send(request, entry, deadline, cancellation);
        final PendingAnswer pending = entry.pending;
        cancellation.onCancel(new Runnable() {
            @Override
            public void run() {
                pending.cancel();
            }
        });
        try {
            return pending.await(deadline, request.receiver());
        } catch (PocketServeException | RuntimeException gaveUp) {
            // The id is in use until its answer arrives; CANCEL saves the server the work.
            keepAlive.cancel(id);
            throw gaveUp;
        } finally {
            cancellation.onCancel(null);
            synchronized (state) {
                budget.removeCaller();
            }
        }
    }

    private long send(Request request, Entry entry, Deadline deadline, Cancellation cancellation)
            throws PocketServeException, ConnectionBrokenException {
        reserve(entry.bytes, deadline, cancellation);
        boolean registered = false;
        try {
            if (!writer.lock(deadline)) {
                throw deadline.exceeded();
            }
            try {
                if (cancellation.isCancelled()) {
                    throw Cancellation.cancelled(null);
                }
                // Ids are assigned under the writer's lock, so they are sent in increasing order.
                long id = register(entry);
                registered = true;
                write(id, request, deadline);
                return id;
            } finally {
                writer.unlock();
            }
        } finally {
            if (!registered) {
                synchronized (state) {
                    budget.release(entry.bytes);
                }
            }
        }
    }

    private void write(long id, Request request, Deadline deadline) {
        try {
            writer.request(id, Math.max(1, deadline.remainingMs()), request);
        } catch (IOException error) {
            // The reader ends the connection, because the server's last frame explains more than this error.
            synchronized (state) {
                draining = true;
                budget.close();
            }
        } catch (RuntimeException | Error fault) {
            // Part of the request may have been written.
            end(Faults.connectionLost("a request could not be written: " + fault, fault));
            throw fault;
        }
    }

    private long register(Entry entry) throws ConnectionBrokenException {
        synchronized (state) {
            if (closeReason != null) {
                throw new ConnectionBrokenException(closeReason.copy(), true);
            }
            if (draining || lastId == MAX_ID) {
                draining = true;
                budget.close();
                throw new ConnectionBrokenException(
                        Faults.connectionLost("the server accepts no more requests on it", null), true);
            }
            lastId++;
            if (budget.addCaller()) {
                keepAlive.begin();
            }
            inflight.put(lastId, entry);
            return lastId;
        }
    }

    private void reserve(int bytes, Deadline deadline, Cancellation cancellation)
            throws PocketServeException, ConnectionBrokenException {
        synchronized (state) {
            if (budget.acquire(bytes, deadline, cancellation)) {
                return;
            }
        }
        PocketServeException stalled =
                Faults.connectionLost("the server answers none of the cancelled calls", null);
        end(stalled);
        throw new ConnectionBrokenException(stalled, true);
    }

    /** Removes a request whose answer has arrived. */
    private Entry remove(long id) {
        synchronized (state) {
            Entry entry = inflight.remove(id);
            if (entry != null) {
                budget.release(entry.bytes);
            }
            return entry;
        }
    }

    private void read(byte[] buffer, int start, int end) {
        try {
            handle(buffer, start, end);
            InputStream in = socket.getInputStream();
            while (true) {
                int missing = decoder.bodyMissing();
                boolean large = missing >= buffer.length;
                // A large body is read directly into its final buffer.
                int count = large ? in.read(decoder.body(), decoder.bodyOffset(), missing) : in.read(buffer);
                if (count < 0) {
                    throw new IOException(decoder.midFrame() ? "it ended within a frame" : "the server closed it");
                }
                keepAlive.received();
                if (large) {
                    decoder.bodyReceived(count);
                    dispatch(decoder.take());
                } else {
                    handle(buffer, 0, count);
                }
            }
        } catch (WireException error) {
            end(Answer.bad(error.getFault() + ", " + error.getMessage(), error));
        } catch (IOException error) {
            end(Faults.connectionLost(String.valueOf(error.getMessage()), error));
        }
    }

    private void handle(byte[] buffer, int start, int end) throws WireException {
        int at = start;
        while (at < end) {
            at += decoder.feed(buffer, at, end - at);
            dispatch(decoder.take());
        }
    }

    private void dispatch(Frame frame) {
        if (frame == null) {
            return;
        }
        switch (frame.type()) {
            case FrameType.RESPONSE:
                answer(frame);
                break;
            case FrameType.PART:
                part(frame);
                break;
            case FrameType.PING:
                keepAlive.pong(frame.arg());
                break;
            case FrameType.GOAWAY:
                drain(frame.requestId());
                break;
            case FrameType.ERROR:
                end(Faults.reported(frame));
                break;
            default:
                break;
        }
    }

    private void answer(Frame frame) {
        Entry entry = remove(frame.requestId());
        if (entry == null) {
            return;
        }
        int unknown = frame.extensions().unknownCritical();
        if (unknown >= 0) {
            entry.pending.fail(PocketServeException.permanent("NOT_IMPLEMENTED", "the answer needs extension " + unknown
                    + " of the protocol, which this library does not know; update it", null), false);
        } else {
            entry.pending.answer(new Answer((int) frame.arg(), contentType(frame), frame.jsonLength(), frame.body(),
                    frame.extensions().retryAfterMs()));
        }
        closeIfDrained();
    }

    private void part(Frame frame) {
        Entry entry;
        synchronized (state) {
            entry = inflight.get(frame.requestId());
        }
        if (entry != null && !entry.pending.part(frame.body())) {
            PocketServeException tooLarge = Answer.bad("more than " + maxAnswerBytes
                    + " bytes of it are unread (maxAnswerBytes)", null);
            entry.pending.fail(tooLarge, false);
            keepAlive.cancel(frame.requestId());
        }
    }

    private static String contentType(Frame frame) {
        String declared = frame.extensions().contentType();
        if (declared != null) {
            return declared;
        }
        return frame.jsonLength() == frame.body().length ? "application/json" : "application/octet-stream";
    }

    /** Accepts no new requests; those after {@code lastAnswered} were not started and may be retried. */
    private void drain(long lastAnswered) {
        synchronized (state) {
            draining = true;
            budget.close();
            Iterator<Map.Entry<Long, Entry>> each = inflight.entrySet().iterator();
            while (each.hasNext()) {
                Map.Entry<Long, Entry> item = each.next();
                if (item.getKey() > lastAnswered) {
                    each.remove();
                    budget.release(item.getValue().bytes);
                    item.getValue().pending.fail(Faults.connectionLost("the server is shutting down", null), true);
                }
            }
        }
        closeIfDrained();
    }

    private void closeIfDrained() {
        boolean drained;
        synchronized (state) {
            drained = draining && inflight.isEmpty();
        }
        if (drained) {
            end(Faults.connectionLost("the server ended it", null));
        }
    }

    /** Ends the connection and all its calls; the first reason counts. */
    @Override
    public void end(PocketServeException reason) {
        synchronized (state) {
            if (closeReason == null) {
                closeReason = reason;
            }
            budget.close();
            for (Entry entry : inflight.values()) {
                entry.pending.fail(closeReason, false);
                budget.release(entry.bytes);
            }
            inflight.clear();
        }
        keepAlive.stop();
        Handshaker.closeQuietly(socket);
    }
}
