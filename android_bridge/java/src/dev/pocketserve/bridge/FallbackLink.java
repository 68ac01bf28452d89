package dev.pocketserve.bridge;

import java.util.Arrays;
import java.util.HashSet;
import java.util.Set;

/**
 * Sends a call to a second server if the first is unavailable and the call may run twice. One deadline covers both; the
 * first server gets half of the time.
 */
final class FallbackLink implements Link {
    private static final Set<String> AWAY = new HashSet<>(Arrays.asList(
            PocketServeException.SERVER_UNREACHABLE, PocketServeException.CONNECTION_LOST,
            PocketServeException.TIMEOUT, PocketServeException.NOT_OUR_SERVER));

    private final Link first;
    private final Link firstRetrying;
    private final String firstName;
    private final Link second;
    private final String secondName;

    /**
     * Creates the link over those of both servers.
     *
     * @param first the link to the first server
     * @param firstRetrying the same with retries while the server is unreachable, for calls that only the first one may
     *     answer
     * @param second the link to the other server
     */
    FallbackLink(Link first, Link firstRetrying, String firstName, Link second, String secondName) {
        this.first = first;
        this.firstRetrying = firstRetrying;
        this.firstName = firstName;
        this.second = second;
        this.secondName = secondName;
    }

    @Override
    public Answer exchange(Request request, Deadline deadline, Cancellation cancellation)
            throws PocketServeException {
        if (!request.mayFallBack() || !request.isIdempotent()) {
            return firstRetrying.exchange(request, deadline, cancellation);
        }
        PocketServeException fault;
        try {
            Deadline share = deadline.within(deadline.remainingMs() / 2);
            Answer answer = first.exchange(request, share, cancellation).from(firstName);
            fault = answer.temporaryRefusal();
            if (fault == null) {
                return answer;
            }
        } catch (PocketServeException error) {
            if (!AWAY.contains(error.getCode())) {
                throw error;
            }
            fault = error;
        }
        return askSecond(request, deadline, cancellation, fault);
    }

    private Answer askSecond(
            Request request, Deadline deadline, Cancellation cancellation, PocketServeException fault)
            throws PocketServeException {
        if (cancellation.isCancelled()) {
            throw Cancellation.cancelled(fault);
        }
        try {
            return second.exchange(request, deadline, cancellation).orThrow().from(secondName);
        } catch (PocketServeException error) {
            String code = error.getCode();
            if (PocketServeException.CANCELLED.equals(code) || PocketServeException.CLOSED.equals(code)) {
                throw error;
            }
            fault.addSuppressed(error); // the first server's error is thrown; this one explains the second failure
            throw fault;
        }
    }

    @Override
    public void close() {
        firstRetrying.close();
        second.close();
    }
}
