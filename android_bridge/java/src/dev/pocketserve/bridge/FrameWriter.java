package dev.pocketserve.bridge;

import dev.pocketserve.bridge.wire.FrameEncoder;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;

/** Writes the frames of a connection one at a time, each in as few writes as possible. */
final class FrameWriter {
    /**
     * A body up to this size is copied after its head and sent with it, because a system call costs more than the copy.
     */
    private static final int JOINED_BYTES = 32_768;
    private static final int CHUNK_BYTES = 65_536;

    private final OutputStream out;
    private final ReentrantLock lock = new ReentrantLock();
    /** A buffer for pieces without an array, such as direct buffers. Created once; used under the lock. */
    private byte[] chunk;

    FrameWriter(OutputStream out) {
        this.out = out;
    }

    /** Acquires the write lock; false if the deadline passes first. */
    boolean lock(Deadline deadline) throws PocketServeException {
        try {
            return lock.tryLock() || lock.tryLock(deadline.remainingNs(), TimeUnit.NANOSECONDS);
        } catch (InterruptedException error) {
            throw Faults.interrupted(error);
        }
    }

    void unlock() {
        lock.unlock();
    }

    /** Writes one REQUEST; the lock must be held. */
    void request(long id, long deadlineMs, Request request) throws IOException {
        ByteBuffer[] body = request.body();
        int joined = joinable(body);
        byte[] head = FrameEncoder.requestHead(id, deadlineMs, request.target,
                request.contentType, request.jsonLength, request.bodyLength, joined);
        int at = head.length - joined;
        int next = 0;
        while (joined > 0 && next < body.length && at + body[next].remaining() <= head.length) {
            int count = body[next].remaining();
            body[next].get(head, at, count);
            at += count;
            next++;
        }
        out.write(head, 0, head.length);
        for (; next < body.length; next++) {
            if (chunk == null && !body[next].hasArray()) {
                chunk = new byte[CHUNK_BYTES];
            }
            write(out, body[next], chunk);
        }
    }

    /** Returns the number of bytes at the body's start that are sent with the head. */
    private static int joinable(ByteBuffer[] body) {
        int total = 0;
        for (ByteBuffer piece : body) {
            if (total + piece.remaining() > JOINED_BYTES) {
                break;
            }
            total += piece.remaining();
        }
        return total;
    }

    /** Writes a piece; one without an accessible array is copied into a buffer first. */
    static void write(OutputStream out, ByteBuffer piece, byte[] scratch) throws IOException {
        if (piece.hasArray()) {
            out.write(piece.array(), piece.arrayOffset() + piece.position(), piece.remaining());
            return;
        }
        byte[] chunk = scratch != null ? scratch : new byte[Math.min(CHUNK_BYTES, piece.remaining())];
        while (piece.hasRemaining()) {
            int count = Math.min(chunk.length, piece.remaining());
            piece.get(chunk, 0, count);
            out.write(chunk, 0, count);
        }
    }

    /** Writes a small frame. Returns false if another thread is still writing at the deadline. */
    boolean small(byte[] frame, long waitMs) throws IOException, InterruptedException {
        if (!lock.tryLock(waitMs, TimeUnit.MILLISECONDS)) {
            return false;
        }
        try {
            out.write(frame, 0, frame.length);
            return true;
        } finally {
            lock.unlock();
        }
    }
}
