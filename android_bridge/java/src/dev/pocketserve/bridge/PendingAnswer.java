package dev.pocketserve.bridge;

/** A request that waits for its answer. */
final class PendingAnswer {
    private Answer answer;
    private PocketServeException fault;
    private boolean notStarted;
    private boolean cancelled;

    synchronized void answer(Answer received) {
        answer = received;
        notifyAll();
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
     * Waits for the outcome.
     *
     * @throws PocketServeException TIMEOUT or CANCELLED: the request is still under way
     * @throws ConnectionBrokenException the connection ended
     */
    synchronized Answer await(Deadline deadline) throws PocketServeException, ConnectionBrokenException {
        while (answer == null && fault == null) {
            if (cancelled) {
                throw Cancellation.cancelled(null);
            }
            long ms = deadline.remainingMs();
            if (ms == 0) {
                throw deadline.exceeded();
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
}
