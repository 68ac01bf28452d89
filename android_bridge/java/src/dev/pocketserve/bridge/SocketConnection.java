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
 * One connection after its handshake: many calls share it. One thread reads; callers write; a second thread watches
 * for a peer that fell silent, and sleeps for good while nothing is under way.
 */
final class SocketConnection implements Watch.Watched {
    private static final long MAX_ID = 0xffffffffL;

    private final Socket socket;
    private final FrameDecoder decoder;
    private final ConnectionLimits limits;
    private final FrameWriter writer;
    private final Watch watch;

    /** Guards everything below; never held during I/O. */
    private final Object state = new Object();
    private final Map<Long, Entry> underWay = new HashMap<>();
    private final Room room;
    private long lastId;
    private boolean draining;
    private PocketServeException ended;

    /** A request under way: also one whose caller has given up, until its answer comes. */
    private static final class Entry {
        private final Pending pending = new Pending();
        private final int bytes;

        Entry(int bytes) {
            this.bytes = bytes;
        }
    }

    SocketConnection(Handshaker opened, int pingIntervalMs) throws IOException {
        this.socket = opened.socket;
        this.decoder = opened.decoder;
        this.limits = opened.limits;
        this.writer = new FrameWriter(socket.getOutputStream());
        this.watch = new Watch(this, writer, pingIntervalMs, Clock.SYSTEM);
        this.room = new Room(state, limits, pingIntervalMs);
        final Handshaker rest = opened;
        start("pocketserve-reader", new Runnable() {
            @Override
            public void run() {
                read(rest.buffer, rest.start, rest.end);
            }
        });
        start("pocketserve-watch", watch);
    }

    private static void start(String name, Runnable work) {
        Thread thread = new Thread(work, name);
        thread.setDaemon(true);
        thread.start();
    }

    /** Whether new requests may be sent here. */
    boolean isUsable() {
        synchronized (state) {
            return ended == null && !draining;
        }
    }

    @Override
    public boolean isBusy() {
        synchronized (state) {
            return ended == null && room.isAwaited();
        }
    }

    /**
     * Sends one request and waits for its answer.
     *
     * @throws BrokenException the connection ended first
     * @throws PocketServeException TIMEOUT, CANCELLED, or BODY_TOO_LARGE without having sent anything
     */
    Answer exchange(Request request, Deadline deadline, Cancellation cancellation)
            throws PocketServeException, BrokenException {
        if (request.bodyLength > limits.maxFrame()) {
            throw new PocketServeException("BODY_TOO_LARGE", 413, false, -1, "the body has " + request.bodyLength
                    + " bytes; this server takes " + limits.maxFrame() + " at most", null);
        }
        if (request.target.length() > FrameEncoder.MAX_TARGET_BYTES) {
            throw new PocketServeException("INVALID_REQUEST", 400, false, -1, "path and query together have "
                    + request.target.length() + " bytes; the socket takes " + FrameEncoder.MAX_TARGET_BYTES
                    + " at most, so shorten the parameters or use Transport.HTTP", null);
        }
        Entry entry = new Entry(request.bodyLength);
        long id = send(request, entry, deadline, cancellation);
        final Pending pending = entry.pending;
        cancellation.onCancel(new Runnable() {
            @Override
            public void run() {
                pending.cancel();
            }
        });
        try {
            return pending.await(deadline);
        } catch (PocketServeException gaveUp) {
            // The id stays taken until its answer comes; CANCEL lets the server spare the work.
            watch.cancel(id);
            throw gaveUp;
        } finally {
            cancellation.onCancel(null);
            synchronized (state) {
                room.leave();
            }
        }
    }

    private long send(Request request, Entry entry, Deadline deadline, Cancellation cancellation)
            throws PocketServeException, BrokenException {
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
                // Ids go out in increasing order because they are given out under the writer's lock.
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
                    room.release(entry.bytes);
                }
            }
        }
    }

    private void write(long id, Request request, Deadline deadline) {
        try {
            writer.request(id, Math.max(1, deadline.remainingMs()), request);
        } catch (IOException broken) {
            // What the server said before it hung up tells more than this does: the reader ends the connection.
            synchronized (state) {
                draining = true;
                room.end();
            }
        } catch (RuntimeException | Error fault) {
            end(Faults.lost("a request could not be written: " + fault, fault)); // who knows how much of it was
            throw fault;
        }
    }

    private long register(Entry entry) throws BrokenException {
        synchronized (state) {
            if (ended != null) {
                throw new BrokenException(ended.again(), true);
            }
            if (draining || lastId == MAX_ID) {
                draining = true;
                room.end();
                throw new BrokenException(Faults.lost("the server takes no more requests on it", null), true);
            }
            lastId++;
            if (room.enter()) {
                watch.begin();
            }
            underWay.put(lastId, entry);
            return lastId;
        }
    }

    private void reserve(int bytes, Deadline deadline, Cancellation cancellation)
            throws PocketServeException, BrokenException {
        synchronized (state) {
            if (room.reserve(bytes, deadline, cancellation)) {
                return;
            }
        }
        PocketServeException stuck = Faults.lost("the server answers none of the calls that were given up", null);
        end(stuck);
        throw new BrokenException(stuck, true);
    }

    /** Takes a request off the list, because its answer came. */
    private Entry forget(long id) {
        synchronized (state) {
            Entry entry = underWay.remove(id);
            if (entry != null) {
                room.release(entry.bytes);
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
                // A large body is received where it stays.
                int count = large ? in.read(decoder.body(), decoder.bodyOffset(), missing) : in.read(buffer);
                if (count < 0) {
                    throw new IOException(decoder.midFrame() ? "it ended within a frame" : "the server closed it");
                }
                watch.received();
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
            end(Faults.lost(String.valueOf(error.getMessage()), error));
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
            case FrameType.PING:
                watch.pong(frame.arg());
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
        Entry entry = forget(frame.requestId());
        if (entry == null) {
            return;
        }
        int unknown = frame.extensions().unknownCritical();
        if (unknown >= 0) {
            entry.pending.fail(PocketServeException.lasting("NOT_IMPLEMENTED", "the answer needs extension " + unknown
                    + " of the protocol, which this library does not know; update it", null), false);
        } else {
            entry.pending.answer(new Answer((int) frame.arg(), contentType(frame), frame.jsonLength(), frame.body(),
                    frame.extensions().retryAfterMs()));
        }
        closeIfDrained();
    }

    private static String contentType(Frame frame) {
        String said = frame.extensions().contentType();
        if (said != null) {
            return said;
        }
        return frame.jsonLength() == frame.body().length ? "application/json" : "application/octet-stream";
    }

    /** No new requests here; those after {@code lastAnswered} were not started and are safe to repeat. */
    private void drain(long lastAnswered) {
        synchronized (state) {
            draining = true;
            room.end();
            Iterator<Map.Entry<Long, Entry>> each = underWay.entrySet().iterator();
            while (each.hasNext()) {
                Map.Entry<Long, Entry> one = each.next();
                if (one.getKey() > lastAnswered) {
                    each.remove();
                    room.release(one.getValue().bytes);
                    one.getValue().pending.fail(Faults.lost("the server is shutting down", null), true);
                }
            }
        }
        closeIfDrained();
    }

    private void closeIfDrained() {
        boolean over;
        synchronized (state) {
            over = draining && underWay.isEmpty();
        }
        if (over) {
            end(Faults.lost("the server ended it", null));
        }
    }

    /** Ends the connection, and with it all calls under way; the first reason counts. */
    @Override
    public void end(PocketServeException why) {
        synchronized (state) {
            if (ended == null) {
                ended = why;
            }
            room.end();
            for (Entry entry : underWay.values()) {
                entry.pending.fail(ended, false);
                room.release(entry.bytes);
            }
            underWay.clear();
        }
        watch.stop();
        Handshaker.closeQuietly(socket);
    }
}
