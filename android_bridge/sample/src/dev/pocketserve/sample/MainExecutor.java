package dev.pocketserve.sample;

import android.os.Handler;
import android.os.Looper;
import java.util.concurrent.Executor;

/** Runs callbacks on the main thread. */
final class MainExecutor implements Executor {
    private final Handler handler = new Handler(Looper.getMainLooper());

    @Override
    public void execute(Runnable work) {
        handler.post(work);
    }
}
