package dev.pocketserve.sample;

import android.content.Context;
import android.net.Uri;
import android.os.SystemClock;
import dev.pocketserve.bridge.Callback;
import dev.pocketserve.bridge.PocketServe;
import dev.pocketserve.bridge.PocketServeException;
import dev.pocketserve.bridge.Prediction;
import java.io.IOException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * Sends single pictures. They are read and decoded in the background, sent and shown on the main thread. A picture that
 * can't be sent yet, or whose answer was interrupted, waits for {@link #resume}.
 */
final class PictureQuestions {
    private final Context context;
    private final AppSettings settings;
    private final Client client;
    private final MainScreen screen;
    private final ProblemPanel panel;
    private final MainExecutor mainThread = new MainExecutor();
    private final ExecutorService background = Executors.newSingleThreadExecutor();
    private final Shown shown;

    PictureQuestions(
            Context context, AppSettings settings, Client client, MainScreen screen, ProblemPanel panel, Shown shown) {
        this.shown = shown;
        this.context = context;
        this.settings = settings;
        this.client = client;
        this.screen = screen;
        this.panel = panel;
    }

    /** Sends a picture that another app shared. */
    void ask(final Uri address) {
        background.execute(new Runnable() {
            @Override
            public void run() {
                try {
                    decode(Pictures.read(context.getContentResolver(), address));
                } catch (Pictures.TooLargeException error) {
                    screen.say(context.getString(R.string.picture_too_large, Pictures.MAX_MEGABYTES));
                } catch (IOException | SecurityException error) {
                    screen.say(context.getString(R.string.picture_failed));
                }
            }
        });
    }

    /** Sends an encoded picture; from any thread. */
    void ask(final byte[] encoded) {
        if (background.isShutdown()) { // the camera was late
            return;
        }
        background.execute(new Runnable() {
            @Override
            public void run() {
                decode(encoded);
            }
        });
    }

    private void decode(byte[] encoded) {
        try {
            final Pictures decoded = Pictures.decode(encoded, context.getCacheDir());
            mainThread.execute(new Runnable() {
                @Override
                public void run() {
                    screen.switchLiveOff(); // its boxes would be drawn over the picture
                    panel.hideCamera(); // a picture needs none
                    screen.showPicture(decoded);
                    shown.waiting = decoded;
                    resume();
                }
            });
        } catch (IOException | OutOfMemoryError error) {
            screen.say(context.getString(R.string.picture_failed));
        }
    }

    /** Sends the waiting picture, if there is one and the server is ready. */
    void resume() {
        PocketServe server = client.get();
        String model = settings.model();
        if (shown.waiting != null && server != null && model != null) {
            ask(server, model, shown.waiting);
        }
    }

    private void ask(PocketServe server, final String model, final Pictures picture) {
        screen.say(context.getString(R.string.asking, model));
        final long began = SystemClock.elapsedRealtime();
        Callback<Prediction> answered = new Callback<Prediction>() {
            @Override
            public void onResult(Prediction answer) {
                panel.hideServer();
                forget(picture);
                screen.showAnswer(picture, answer, SystemClock.elapsedRealtime() - began);
                screen.say(context.getString(R.string.result_line, model, answer.summary()));
            }

            @Override
            public void onError(PocketServeException error) {
                if (Problem.isOurs(error)) {
                    return; // it waits until the screen is visible again
                }
                if (Problem.of(error) == Problem.OTHER) {
                    forget(picture);
                }
                panel.show(error);
            }
        };
        server.async().classify(model, picture.encoded, settings.questions(), answered);
    }

    private void forget(Pictures picture) {
        shown.waiting = shown.waiting == picture ? null : shown.waiting;
    }

    /** Stops accepting pictures. */
    void close() {
        background.shutdown();
    }
}
