package dev.pocketserve.bridge;

/**
 * Looks for a server that was there and is gone: it may be starting again. Only for calls that may be made twice, and
 * only for a while. The links below repeat at once, for connections that had merely grown old.
 */
final class PatientLink implements Link {
    private static final long FIRST_PAUSE_MS = 20;
    private static final long LONGEST_PAUSE_MS = 500;

    private final Link link;
    private final int reconnectMs;
    private volatile boolean answered;
    private volatile boolean closed;

    PatientLink(Link link, int reconnectMs) {
        this.link = link;
        this.reconnectMs = reconnectMs;
    }

    @Override
    public Answer exchange(Request request, Deadline deadline, Cancellation cancellation)
            throws PocketServeException {
        try {
            return answered(link.exchange(request, deadline, cancellation));
        } catch (PocketServeException error) {
            if (!mayReturn(request, error)) {
                throw error;
            }
            return lookFor(request, deadline, cancellation, error);
        }
    }

    private Answer lookFor(
            Request request, Deadline deadline, Cancellation cancellation, PocketServeException first)
            throws PocketServeException {
        PocketServeException lost = first;
        Deadline window = deadline.within(reconnectMs);
        for (long pause = FIRST_PAUSE_MS; !window.isOver(); pause = Math.min(LONGEST_PAUSE_MS, 2 * pause)) {
            sleep(Math.min(pause, window.remainingMs()));
            if (closed || cancellation.isCancelled()) {
                throw lost;
            }
            try {
                return answered(link.exchange(request, deadline, cancellation));
            } catch (PocketServeException error) {
                if (!mayReturn(request, error)) {
                    throw error;
                }
                lost = error;
            }
        }
        throw lost;
    }

    /** A server that has never answered is not waited for: most likely nobody has started it. */
    private boolean mayReturn(Request request, PocketServeException error) {
        boolean gone = PocketServeException.CONNECTION_LOST.equals(error.getCode())
                || PocketServeException.SERVER_UNREACHABLE.equals(error.getCode());
        return gone && answered && !closed && request.isIdempotent() && request.needsToken();
    }

    private Answer answered(Answer answer) {
        answered = true;
        return answer;
    }

    private static void sleep(long ms) throws PocketServeException {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException error) {
            throw Faults.interrupted(error);
        }
    }

    @Override
    public void close() {
        closed = true;
        link.close();
    }
}
