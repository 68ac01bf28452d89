package dev.pocketserve.sample;

import android.app.Activity;
import android.content.res.Configuration;
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
import dev.pocketserve.bridge.Prediction;

/** The first screen's views. It knows what they show, and nothing of servers and cameras. Of the main thread. */
final class MainScreen {
    /** The view that the camera draws on. */
    final TextureView preview;
    private final Activity activity;
    private final MainExecutor mainThread = new MainExecutor();
    private final Results results;
    private final ImageView picture;
    private final BoxView boxes;
    private final TextView liveStatus;
    private final Switch liveSwitch;

    /** The wishes of the person. */
    interface Listener {
        /** A picture by the camera. */
        void onShutter();

        /** A picture that is there already. */
        void onGallery();

        /** Frames of the camera, one after the other, or no longer. */
        void onLiveSwitched(boolean on);
    }

    MainScreen(Activity activity, Listener listener) {
        this.activity = activity;
        activity.setContentView(R.layout.activity_main);
        results = new Results(activity);
        ((ListView) activity.findViewById(R.id.results)).setAdapter(results);
        preview = (TextureView) activity.findViewById(R.id.preview);
        picture = (ImageView) activity.findViewById(R.id.picture);
        boxes = (BoxView) activity.findViewById(R.id.boxes);
        liveStatus = (TextView) activity.findViewById(R.id.live_status);
        liveSwitch = (Switch) activity.findViewById(R.id.live);
        arrange(activity.getResources().getConfiguration());
        listen(listener);
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

    /** Side by side when the screen is wide: turning the phone does not make the activity anew. */
    void arrange(Configuration screen) {
        boolean wide = screen.orientation == Configuration.ORIENTATION_LANDSCAPE;
        LinearLayout content = (LinearLayout) activity.findViewById(R.id.content);
        content.setOrientation(wide ? LinearLayout.HORIZONTAL : LinearLayout.VERTICAL);
        for (int i = 0; i < content.getChildCount(); i++) {
            ViewGroup.LayoutParams part = content.getChildAt(i).getLayoutParams();
            part.width = wide ? 0 : ViewGroup.LayoutParams.MATCH_PARENT;
            part.height = wide ? ViewGroup.LayoutParams.MATCH_PARENT : 0;
        }
        content.requestLayout();
    }

    /** Returns how far the screen is turned from how it is mostly held. */
    int degrees() {
        return activity.getWindowManager().getDefaultDisplay().getRotation() * 90;
    }

    /** The preview, without what was found on a picture. */
    void showCamera() {
        picture.setVisibility(View.GONE);
        picture.setImageDrawable(null);
        boxes.clear();
    }

    /** A picture in place of the preview. */
    void showPicture(Pictures photo) {
        picture.setImageBitmap(photo.preview);
        picture.setVisibility(View.VISIBLE);
        boxes.clear();
    }

    /** Shows the answer to a picture. */
    void showAnswer(Pictures photo, Prediction answer, long tookMs) {
        results.add(answer, tookMs);
        boxes.show(answer.getLabels(), photo.width, photo.height, false);
    }

    /** Returns whether the person wants frames to be asked about. */
    boolean wantsLive() {
        return liveSwitch.isChecked();
    }

    /** Turns the switch off, which tells the listener. */
    void switchLiveOff() {
        liveSwitch.setChecked(false);
    }

    /** Room for a line about the frames, still empty. */
    void showLiveStatus(boolean on) {
        liveStatus.setVisibility(on ? View.VISIBLE : View.GONE);
        liveStatus.setText("");
    }

    /** Shows the answer to a frame. */
    void showLive(Prediction prediction, int width, int height, double framesPerSecond, long latencyMs) {
        liveStatus.setText(
                activity.getString(R.string.live_status, prediction.summary(), framesPerSecond, latencyMs));
        boxes.show(prediction.getLabels(), width, height, true);
    }

    /** Nothing is drawn over the preview any more. */
    void clearBoxes() {
        boxes.clear();
    }

    /** A short message; from any thread. */
    void say(final String text) {
        mainThread.execute(new Runnable() {
            @Override
            public void run() {
                Toast.makeText(activity, text, Toast.LENGTH_SHORT).show();
            }
        });
    }
}
