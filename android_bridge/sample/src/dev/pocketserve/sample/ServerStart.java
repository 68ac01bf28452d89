package dev.pocketserve.sample;

import android.os.Handler;
import android.os.Looper;
import android.os.SystemClock;
import dev.pocketserve.bridge.Callback;
import dev.pocketserve.bridge.PocketServe;
import dev.pocketserve.bridge.PocketServeException;

/** Waits for a server that was just started, with a timeout. Main thread only. */
final class ServerStart {
    /** Python and Flask take seconds on an old phone. */
    static final int LIMIT_S = 45;
    private static final int PAUSE_MS = 700;

    private final PocketServe server;
    private final Listener listener;
    private final Handler handler = new Handler(Looper.getMainLooper());
    private final long ends = SystemClock.elapsedRealtime() + LIMIT_S * 1000L;
    private boolean cancelled;

    /** Receives the outcome. */
    interface Listener {
        /** The server accepts requests. */
        void onStarted();

        /** The server doesn't answer, or another app has its port. */
        void onNotStarted(PocketServeException error);
    }

    ServerStart(PocketServe server, Listener listener) {
        this.server = server;
        this.listener = listener;
    }

    void cancel() {
        cancelled = true;
        handler.removeCallbacksAndMessages(null);
    }

    void ask() {
        server.async().isReady(new Callback<Boolean>() {
            @Override
            public void onResult(Boolean ready) {
                if (cancelled) {
                    return;
                }
                if (ready) {
                    listener.onStarted();
                } else {
                    retry(null);
                }
            }

            @Override
            public void onError(PocketServeException error) {
                if (cancelled) {
                    return;
                }
                if (Problem.of(error) == Problem.UNREACHABLE) {
                    retry(error);
                } else {
                    listener.onNotStarted(error);
                }
            }
        });
    }

    private void retry(PocketServeException error) {
        if (SystemClock.elapsedRealtime() >= ends) {
            listener.onNotStarted(error);
            return;
        }
        handler.postDelayed(new Runnable() {
            @Override
            public void run() {
                ask();
            }
        }, PAUSE_MS);
    }
}
