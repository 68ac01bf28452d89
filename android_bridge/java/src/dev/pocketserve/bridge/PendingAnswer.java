package dev.pocketserve.bridge;

import java.io.ByteArrayOutputStream;
import java.util.ArrayDeque;

/** A request that waits for its answer. */
final class PendingAnswer {
    private final int maxBytes;
    /** Parts that were not read yet. */
    private final ArrayDeque<byte[]> parts = new ArrayDeque<>();
    private int keptBytes;
    private Answer answer;
    private PocketServeException fault;
    private boolean notStarted;
    private boolean cancelled;

    /**
     * Starts without an outcome.
     *
     * @param maxBytes the limit of parts that were not read yet
     */
    PendingAnswer(int maxBytes) {
        this.maxBytes = maxBytes;
    }

    synchronized void answer(Answer received) {
        answer = received;
        notifyAll();
    }

    /**
     * Keeps a part of the answer.
     *
     * @return false if the part exceeds the limit and was dropped
     */
    synchronized boolean part(byte[] bytes) {
        if (bytes.length > maxBytes - keptBytes) {
            return false;
        }
        keptBytes += bytes.length;
        parts.add(bytes);
        notifyAll();
        return true;
    }

    synchronized void fail(PocketServeException error, boolean neverStarted) {
        fault = error;
        notStarted = neverStarted;
        notifyAll();
    }

    synchronized void cancel() {
        cancelled = true;
        notifyAll();
    }

    /**
     * Waits for the outcome, and passes on earlier parts.
     *
     * @param receiver receives the body of a successful answer, whose own body is then empty; null keeps the body in
     *     the answer
     * @throws PocketServeException TIMEOUT or CANCELLED: the request is still in progress
     * @throws ConnectionBrokenException the connection ended
     */
    Answer await(Deadline deadline, PartReceiver receiver) throws PocketServeException, ConnectionBrokenException {
        if (receiver == null) {
            return whole(awaitOutcome(deadline, false));
        }
        while (true) {
            Answer outcome = awaitOutcome(deadline, true);
            byte[] part = takePart();
            if (part != null) {
                receiver.part(part, part.length);
            } else if (outcome.status != 200) {
                return outcome;
            } else {
                receiver.part(outcome.body, outcome.body.length);
                return outcome.withBody(new byte[0]);
            }
        }
    }

    /** Waits for the outcome, or returns null when a part arrives. */
    private synchronized Answer awaitOutcome(Deadline deadline, boolean takesParts)
            throws PocketServeException, ConnectionBrokenException {
        while (true) {
            boolean hasPart = takesParts && !parts.isEmpty();
            boolean isOver = answer != null || fault != null;
            if (isOver && !hasPart) {
                break;
            }
            if (cancelled) {
                throw Cancellation.cancelled(null);
            }
            long ms = deadline.remainingMs();
            if (ms == 0) {
                throw deadline.exceeded();
            }
            if (hasPart) {
                return null;
            }
            try {
                wait(ms);
            } catch (InterruptedException error) {
                throw Faults.interrupted(error);
            }
        }
        if (answer != null) {
            return answer;
        }
        throw new ConnectionBrokenException(fault.copy(), notStarted);
    }

    private synchronized byte[] takePart() {
        byte[] part = parts.poll();
        if (part != null) {
            keptBytes -= part.length;
        }
        return part;
    }

    /** Prepends parts that were not read to a successful answer's body. */
    private synchronized Answer whole(Answer outcome) {
        if (parts.isEmpty() || outcome.status != 200) {
            return outcome;
        }
        ByteArrayOutputStream body = new ByteArrayOutputStream();
        for (byte[] part : parts) {
            body.write(part, 0, part.length);
        }
        body.write(outcome.body, 0, outcome.body.length);
        return outcome.withBody(body.toByteArray());
    }
}
