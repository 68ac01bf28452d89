package dev.pocketserve.bridge;

/** One request that waits for its answer. */
final class Pending {
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
     * @throws BrokenException the connection ended
     */
    synchronized Answer await(Deadline deadline) throws PocketServeException, BrokenException {
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
        throw new BrokenException(fault.again(), notStarted);
    }
}
