package dev.pocketserve.sample;

import android.content.Context;
import android.net.Uri;
import android.os.SystemClock;
import dev.pocketserve.bridge.Callback;
import dev.pocketserve.bridge.PocketServeException;
import dev.pocketserve.bridge.Prediction;
import java.io.IOException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/** Asks about single pictures: read and decoded in the background, asked about and shown on the main thread. */
final class PictureQuestions {
    private final Context context;
    private final AppSettings settings;
    private final Client client;
    private final MainScreen screen;
    private final ProblemPanel panel;
    private final MainExecutor mainThread = new MainExecutor();
    private final ExecutorService background = Executors.newSingleThreadExecutor();

    PictureQuestions(
            Context context, AppSettings settings, Client client, MainScreen screen, ProblemPanel panel) {
        this.context = context;
        this.settings = settings;
        this.client = client;
        this.screen = screen;
        this.panel = panel;
    }

    /** Asks about what another app offers. */
    void ask(final Uri address) {
        background.execute(new Runnable() {
            @Override
            public void run() {
                try {
                    ask(Pictures.read(context.getContentResolver(), address));
                } catch (Pictures.TooLargeException error) {
                    screen.say(context.getString(R.string.picture_too_large, Pictures.MAX_MEGABYTES));
                } catch (IOException | SecurityException error) {
                    screen.say(context.getString(R.string.picture_failed));
                }
            }
        });
    }

    /** Asks about a picture as it was encoded; from any thread. */
    void ask(final byte[] encoded) {
        final String model = settings.model();
        if (model == null) {
            screen.say(context.getString(R.string.no_models));
            return;
        }
        if (background.isShutdown()) { // the camera was a little late
            return;
        }
        background.execute(new Runnable() {
            @Override
            public void run() {
                try {
                    final Pictures decoded = Pictures.decode(encoded, context.getCacheDir());
                    mainThread.execute(new Runnable() {
                        @Override
                        public void run() {
                            ask(model, decoded);
                        }
                    });
                } catch (IOException | OutOfMemoryError error) {
                    screen.say(context.getString(R.string.picture_failed));
                }
            }
        });
    }

    private void ask(final String model, final Pictures picture) {
        screen.showPicture(picture);
        screen.say(context.getString(R.string.asking, model));
        final long began = SystemClock.elapsedRealtime();
        client.get().async().classify(model, picture.encoded, null, new Callback<Prediction>() {
            @Override
            public void onResult(Prediction answer) {
                panel.hide();
                screen.showAnswer(picture, answer, SystemClock.elapsedRealtime() - began);
                screen.say(context.getString(R.string.result_line, model, answer.summary()));
            }

            @Override
            public void onError(PocketServeException error) {
                panel.show(error);
            }
        });
    }

    /** Takes no more pictures. */
    void close() {
        background.shutdown();
    }
}
