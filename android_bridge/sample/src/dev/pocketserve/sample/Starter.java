package dev.pocketserve.sample;

import android.content.Context;
import dev.pocketserve.bridge.PocketServe;
import dev.pocketserve.bridge.PocketServeException;

/** Starts the server in Termux, waits for it and shows the progress. Main thread only. */
final class Starter {
    private final Context context;
    private final AppSettings settings;
    private final ProblemPanel panel;
    private final Listener listener;
    private ServerStart waiting;

    /** The activity's part. */
    interface Listener {
        /** The app must request {@link Termux#PERMISSION} first. */
        void onTermuxPermissionNeeded();

        /** The server accepts requests. */
        void onStarted();
    }

    Starter(Context context, AppSettings settings, ProblemPanel panel, Listener listener) {
        this.context = context;
        this.settings = settings;
        this.panel = panel;
        this.listener = listener;
    }

    /** Starts the server, if Termux is installed and allows it. */
    void start(PocketServe client) {
        Termux termux = new Termux(context);
        switch (termux.state()) {
            case MISSING:
                cannot(R.string.termux_missing);
                return;
            case CANNOT:
                cannot(R.string.termux_play);
                return;
            case NOT_ALLOWED:
                listener.onTermuxPermissionNeeded();
                return;
            default:
                break;
        }
        String refusal = termux.startServer(settings);
        if (refusal == null) {
            panel.showStarting();
            await(client);
        } else {
            cannotWithHint(context.getString(R.string.termux_refused, refusal));
        }
    }

    private void await(PocketServe client) {
        waiting = new ServerStart(client, new ServerStart.Listener() {
            @Override
            public void onStarted() {
                waiting = null;
                listener.onStarted();
            }

            @Override
            public void onNotStarted(PocketServeException error) {
                waiting = null;
                if (error != null && Problem.of(error) != Problem.UNREACHABLE) {
                    panel.show(error);
                } else {
                    cannotWithHint(context.getString(R.string.start_timeout, ServerStart.LIMIT_S));
                }
            }
        });
        waiting.ask();
    }

    /** The user denied it. */
    void notAllowed() {
        cannot(R.string.termux_permission);
    }

    private void cannot(int reason) {
        cannot(context.getString(reason));
    }

    private void cannotWithHint(String reason) {
        cannot(reason + '\n' + context.getString(R.string.termux_hint));
    }

    private void cannot(String reason) {
        panel.show(context.getString(R.string.problem_unreachable), reason, Problem.Action.START);
    }

    /** Stops waiting; the server continues to start. */
    void cancel() {
        if (waiting != null) {
            waiting.cancel();
            waiting = null;
        }
    }
}
