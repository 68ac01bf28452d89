package dev.pocketserve.sample;

import android.app.Activity;
import android.view.View;
import android.widget.Button;
import android.widget.ProgressBar;
import android.widget.TextView;
import dev.pocketserve.bridge.PocketServeException;

/** Says in words what is wrong and offers the way out. */
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

        /** The second one. */
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
        if (pressed != Problem.Action.NONE) {
            action.setText(pressed == Problem.Action.START ? R.string.start_server
                    : pressed == Problem.Action.CAMERA ? R.string.camera_allow : R.string.settings);
        }
        retry.setVisibility(View.VISIBLE);
        progress.setVisibility(View.GONE);
        panel.setVisibility(View.VISIBLE);
    }

    /** The server is being started. */
    void showStarting() {
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
}
