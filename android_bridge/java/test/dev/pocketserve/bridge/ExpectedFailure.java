package dev.pocketserve.bridge;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.fail;

/** Returns the exception that a call fails with. */
final class ExpectedFailure {
    private ExpectedFailure() {
    }

    /** A call that is expected to fail. */
    interface Attempt {
        Object run() throws Exception;
    }

    static PocketServeException of(Attempt attempt) throws Exception {
        Object result;
        try {
            result = attempt.run();
        } catch (PocketServeException error) {
            return error;
        }
        fail("it gave " + result);
        return null;
    }

    static PocketServeException of(String code, Attempt attempt) throws Exception {
        PocketServeException error = of(attempt);
        assertEquals(error.toString(), code, error.getCode());
        return error;
    }
}
