package android.os;

/** A stub of Android's class of this name, which the library finds by name. */
public final class Looper {
    private static volatile Looper main;
    private final Thread thread;

    private Looper(Thread thread) {
        this.thread = thread;
    }

    /** Declares a thread to be the main one; null for none. */
    public static void setMain(Thread thread) {
        main = thread == null ? null : new Looper(thread);
    }

    /** As on Android. */
    public static Looper getMainLooper() {
        return main;
    }

    /** As on Android. */
    public Thread getThread() {
        return thread;
    }
}
