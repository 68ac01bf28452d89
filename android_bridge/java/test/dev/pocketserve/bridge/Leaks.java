package dev.pocketserve.bridge;

import java.lang.ref.WeakReference;

/** Checks that a client leaves no thread, socket or object behind. */
final class Leaks {
    private Leaks() {
    }

    /** Counts the library's threads that do not end. */
    static int threads() throws InterruptedException {
        int left = 0;
        for (Thread thread : Thread.getAllStackTraces().keySet()) {
            if (thread.getName().startsWith("pocketserve-")) {
                thread.join(10_000);
                left += thread.isAlive() ? 1 : 0;
            }
        }
        return left;
    }

    /** Returns once the object is garbage; otherwise the test's timeout ends it. */
    static void awaitForgotten(WeakReference<?> object) throws InterruptedException {
        while (object.get() != null) {
            System.gc();
            Thread.yield();
        }
    }
}
