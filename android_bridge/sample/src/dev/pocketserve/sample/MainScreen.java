package dev.pocketserve.sample;

import android.app.Activity;
import android.content.res.Configuration;
import android.os.SystemClock;
import android.view.TextureView;
import android.view.View;
import android.view.ViewGroup;
import android.widget.CompoundButton;
import android.widget.ImageView;
import android.widget.LinearLayout;
import android.widget.ListView;
import android.widget.Switch;
import android.widget.TextView;
import android.widget.Toast;
import android.widget.Toolbar;
import dev.pocketserve.bridge.Label;
import dev.pocketserve.bridge.Prediction;
import dev.pocketserve.sample.pure.Overlay;
import dev.pocketserve.sample.pure.SpeechGate;

/** The views of the first screen, without servers and cameras. Main thread only. */
final class MainScreen {
    /** TalkBack announces at most one answer in this time. */
    private static final long SPEECH_INTERVAL_MS = 1000;
    /** The view that the camera draws on. */
    final TextureView preview;
    private final Activity activity;
    private final MainExecutor mainThread = new MainExecutor();
    private final Results results;
    private final ImageView picture;
    private final OverlayView overlay;
    private final TextView liveStatus;
    private final View spoken;
    private final SpeechGate speech = new SpeechGate(SPEECH_INTERVAL_MS);
    private final Shown shown;
    private final Switch liveSwitch;

    /** The user's actions. */
    interface Listener {
        /** Take a picture with the camera. */
        void onShutter();

        /** Choose an existing picture. */
        void onGallery();

        /** Start or stop live mode. */
        void onLiveSwitched(boolean on);
    }

    /** Restores the previous contents. */
    MainScreen(Activity activity, Shown shown, Listener listener) {
        this.activity = activity;
        this.shown = shown;
        activity.setContentView(R.layout.activity_main);
        activity.setActionBar((Toolbar) activity.findViewById(R.id.bar));
        SystemBars.keepClear(activity.findViewById(R.id.bar), activity.findViewById(R.id.below_bar));
        results = new Results(activity, shown.answers);
        ((ListView) activity.findViewById(R.id.results)).setAdapter(results);
        preview = (TextureView) activity.findViewById(R.id.preview);
        picture = (ImageView) activity.findViewById(R.id.picture);
        overlay = (OverlayView) activity.findViewById(R.id.overlay);
        spoken = activity.findViewById(R.id.spoken);
        liveStatus = (TextView) activity.findViewById(R.id.live_status);
        liveSwitch = (Switch) activity.findViewById(R.id.live);
        arrange(activity.getResources().getConfiguration());
        listen(listener);
        if (shown.picture != null) {
            show(shown.picture, shown.overlay);
        }
    }

    private void listen(final Listener listener) {
        activity.findViewById(R.id.shutter).setOnClickListener(new View.OnClickListener() {
            @Override
            public void onClick(View view) {
                showCamera();
                listener.onShutter();
            }
        });
        activity.findViewById(R.id.gallery).setOnClickListener(new View.OnClickListener() {
            @Override
            public void onClick(View view) {
                listener.onGallery();
            }
        });
        picture.setOnClickListener(new View.OnClickListener() {
            @Override
            public void onClick(View view) {
                showCamera();
            }
        });
        liveSwitch.setOnCheckedChangeListener(new CompoundButton.OnCheckedChangeListener() {
            @Override
            public void onCheckedChanged(CompoundButton button, boolean on) {
                showCamera();
                listener.onLiveSwitched(on);
            }
        });
    }

    /** Arranges the parts side by side on a wide screen. Rotation doesn't recreate the activity, so this runs again. */
    void arrange(Configuration screen) {
        boolean wide = screen.orientation == Configuration.ORIENTATION_LANDSCAPE;
        arrange((LinearLayout) activity.findViewById(R.id.choices), wide, ViewGroup.LayoutParams.WRAP_CONTENT, 0);
        arrange((LinearLayout) activity.findViewById(R.id.content), wide, ViewGroup.LayoutParams.MATCH_PARENT, 1);
    }

    /** Gives all parts an equal share of the width, or this share of the height if stacked. */
    private static void arrange(LinearLayout parts, boolean wide, int height, int share) {
        parts.setOrientation(wide ? LinearLayout.HORIZONTAL : LinearLayout.VERTICAL);
        for (int i = 0; i < parts.getChildCount(); i++) {
            LinearLayout.LayoutParams part = (LinearLayout.LayoutParams) parts.getChildAt(i).getLayoutParams();
            part.width = wide ? 0 : ViewGroup.LayoutParams.MATCH_PARENT;
            part.height = wide || share == 0 ? height : 0;
            part.weight = wide ? 1 : share;
        }
        parts.requestLayout();
    }

    /** Shows the preview without drawings. */
    void showCamera() {
        picture.setVisibility(View.GONE);
        picture.setImageDrawable(null);
        shown.picture = null;
        overlay.clear();
    }

    /** Shows a picture instead of the preview. */
    void showPicture(Pictures photo) {
        show(photo, Overlay.EMPTY);
    }

    private void show(Pictures photo, Overlay found) {
        shown.picture = photo;
        shown.overlay = found;
        picture.setImageBitmap(photo.preview);
        picture.setVisibility(View.VISIBLE);
        overlay.show(found, photo.width, photo.height, false, false);
    }

    /** Shows the answer to a picture. */
    void showAnswer(Pictures photo, Prediction answer, long tookMs) {
        results.add(answer, tookMs);
        if (shown.picture == photo) { // the user may have returned to the camera in the meantime
            show(photo, Overlay.of(answer.getJson()));
        }
    }

    /** Returns whether live mode is switched on. */
    boolean wantsLive() {
        return liveSwitch.isChecked();
    }

    /** Turns the switch off, which notifies the listener. */
    void switchLiveOff() {
        liveSwitch.setChecked(false);
    }

    /** Shows an empty line for the frame rate. */
    void showLiveStatus(boolean on) {
        liveStatus.setVisibility(on ? View.VISIBLE : View.GONE);
        liveStatus.setText("");
        speech.reset();
    }

    /** Shows the answer to a frame; TalkBack announces it if it has changed. */
    void showLive(Prediction prediction, int width, int height, boolean mirrored, double framesPerSecond,
            long latencyMs) {
        liveStatus.setText(
                activity.getString(R.string.live_status, prediction.summary(), framesPerSecond, latencyMs));
        overlay.show(Overlay.of(prediction.getJson()), width, height, true, mirrored);
        Label best = prediction.getBest();
        String text = best == null ? activity.getString(R.string.nothing) : best.getLabel();
        if (speech.admits(text, SystemClock.elapsedRealtime())) {
            spoken.setContentDescription(text); // a live region: changes are announced
        }
    }

    /** Removes drawings from the preview. */
    void clearOverlay() {
        overlay.clear();
    }

    /** Shows a short message; from any thread. */
    void say(final String text) {
        mainThread.execute(new Runnable() {
            @Override
            public void run() {
                Toast.makeText(activity, text, Toast.LENGTH_SHORT).show();
            }
        });
    }
}
