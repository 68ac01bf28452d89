package dev.pocketserve.sample;

import android.app.Activity;
import android.content.Context;
import android.content.Intent;
import android.net.Uri;
import android.provider.Settings;
import android.view.View;
import android.widget.Button;
import android.widget.ProgressBar;
import android.widget.TextView;
import dev.pocketserve.bridge.PocketServeException;
import dev.pocketserve.sample.pure.CameraAccess;

/** Explains a problem and offers the solution. */
final class ProblemPanel {
    private final Activity activity;
    private final View panel;
    private final TextView title;
    private final TextView text;
    private final ProgressBar progress;
    private final Button action;
    private final Button retry;
    private Problem.Action pressAction = Problem.Action.NONE;

    /** The actions of the buttons. */
    interface Listener {
        /** The first button was pressed. */
        void onAction(Problem.Action action);

        /** The second button was pressed. */
        void onRetry();
    }

    ProblemPanel(Activity activity, final Listener listener) {
        this.activity = activity;
        panel = activity.findViewById(R.id.problem);
        title = (TextView) activity.findViewById(R.id.problem_title);
        text = (TextView) activity.findViewById(R.id.problem_text);
        progress = (ProgressBar) activity.findViewById(R.id.problem_progress);
        action = (Button) activity.findViewById(R.id.problem_action);
        retry = (Button) activity.findViewById(R.id.problem_retry);
        action.setOnClickListener(new View.OnClickListener() {
            @Override
            public void onClick(View view) {
                listener.onAction(pressAction);
            }
        });
        retry.setOnClickListener(new View.OnClickListener() {
            @Override
            public void onClick(View view) {
                listener.onRetry();
            }
        });
    }

    void show(PocketServeException error) {
        Problem problem = Problem.of(error);
        String help = problem.help == 0 ? error.getMessage() : activity.getString(problem.help);
        show(activity.getString(problem.title), help, problem.action);
    }

    void show(String heading, String help, Problem.Action pressed) {
        pressAction = pressed;
        title.setText(heading);
        text.setText(help);
        action.setVisibility(pressed == Problem.Action.NONE ? View.GONE : View.VISIBLE);
        action.setText(textOf(pressed));
        retry.setVisibility(View.VISIBLE);
        progress.setVisibility(View.GONE);
        panel.setVisibility(View.VISIBLE);
    }

    private static int textOf(Problem.Action pressed) {
        switch (pressed) {
            case START:
                return R.string.start_server;
            case CAMERA:
                return R.string.camera_allow;
            case SYSTEM_SETTINGS:
                return R.string.system_settings;
            default:
                return R.string.settings;
        }
    }

    /** Explains how to allow the camera. */
    void show(CameraAccess access) {
        boolean settled = access == CameraAccess.ONLY_SETTINGS;
        int help = settled ? R.string.camera_settings : R.string.camera_permission;
        show(activity.getString(R.string.problem_camera), activity.getString(help),
                settled ? Problem.Action.SYSTEM_SETTINGS : Problem.Action.CAMERA);
    }

    /** Returns an intent for the system's settings of this app, which have the permissions. */
    static Intent systemSettings(Context context) {
        Uri app = Uri.fromParts("package", context.getPackageName(), null);
        return new Intent(Settings.ACTION_APPLICATION_DETAILS_SETTINGS, app);
    }

    /** The server is being started. */
    void showStarting() {
        pressAction = Problem.Action.NONE;
        title.setText(R.string.starting);
        text.setText(R.string.termux_hint);
        action.setVisibility(View.GONE);
        retry.setVisibility(View.GONE);
        progress.setVisibility(View.VISIBLE);
        panel.setVisibility(View.VISIBLE);
    }

    void hide() {
        panel.setVisibility(View.GONE);
    }

    /** The server answers: hides its problem, but not the camera's. */
    void hideServer() {
        if (!isOfCamera()) {
            hide();
        }
    }

    /** The camera is open: hides its problem, but not the server's. */
    void hideCamera() {
        if (isOfCamera()) {
            hide();
        }
    }

    private boolean isOfCamera() {
        return pressAction == Problem.Action.CAMERA || pressAction == Problem.Action.SYSTEM_SETTINGS;
    }
}
