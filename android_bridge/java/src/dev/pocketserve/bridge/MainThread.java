package dev.pocketserve.bridge;

/**
 * Detects Android's main thread by reflection, so that the library also runs without Android, where all threads may
 * block.
 */
final class MainThread {
    private final Thread main;

    private MainThread(Thread main) {
        this.main = main;
    }

    /** Allows every thread. */
    static MainThread unchecked() {
        return new MainThread(null);
    }

    static MainThread find() {
        try {
            Class<?> looper = Class.forName("android.os.Looper");
            Object mainLooper = looper.getMethod("getMainLooper").invoke(null);
            if (mainLooper == null) {
                return unchecked();
            }
            return new MainThread((Thread) looper.getMethod("getThread").invoke(mainLooper));
        } catch (ReflectiveOperationException absent) {
            return unchecked();
        } catch (LinkageError | RuntimeException stub) {
            // A stub of the Android API on a desktop throws from every method.
            return unchecked();
        }
    }

    /** Throws on Android's main thread. */
    void refuse() throws PocketServeException {
        if (main != null && Thread.currentThread() == main) {
            throw PocketServeException.permanent(PocketServeException.ON_MAIN_THREAD,
                    "a blocking call on Android's main thread would freeze the screen, and Android forbids it; use "
                    + "async() with a callback, a coroutine on Dispatchers.IO, or a thread of your own", null);
        }
    }
}
