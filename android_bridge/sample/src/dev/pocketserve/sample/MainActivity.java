package dev.pocketserve.sample;

import android.Manifest;
import android.app.Activity;
import android.content.ActivityNotFoundException;
import android.content.Intent;
import android.content.pm.PackageManager;
import android.content.res.Configuration;
import android.graphics.SurfaceTexture;
import android.media.Image;
import android.net.Uri;
import android.os.Bundle;
import android.os.SystemClock;
import android.view.Menu;
import android.view.MenuItem;
import android.view.TextureView;
import android.view.View;
import android.view.ViewGroup;
import android.widget.AdapterView;
import android.widget.ArrayAdapter;
import android.widget.CompoundButton;
import android.widget.ImageView;
import android.widget.LinearLayout;
import android.widget.ListView;
import android.widget.Spinner;
import android.widget.Switch;
import android.widget.TextView;
import android.widget.Toast;
import dev.pocketserve.bridge.Callback;
import dev.pocketserve.bridge.ModelState;
import dev.pocketserve.bridge.PocketServe;
import dev.pocketserve.bridge.PocketServeException;
import dev.pocketserve.bridge.Prediction;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/** The one screen: camera, picture, answers. */
public final class MainActivity extends Activity implements Camera.Listener, LiveMode.Listener,
        ProblemPanel.Listener, TextureView.SurfaceTextureListener {
    private static final int ASK_CAMERA = 1;
    private static final int ASK_TERMUX = 2;
    private static final int PICK_PICTURE = 3;
    private static final int SETTINGS_ITEM = 1;

    private final List<String> models = new ArrayList<>();
    private final ExecutorService background = Executors.newSingleThreadExecutor();
    private final MainExecutor mainThread = new MainExecutor();
    private AppSettings settings;
    private PocketServe server;
    private String serverIs;
    private Camera camera;
    private volatile LiveMode live;
    private ServerStart start;
    private ProblemPanel problem;
    private Results results;
    private ArrayAdapter<String> modelAdapter;
    private Spinner modelSpinner;
    private TextureView preview;
    private ImageView picture;
    private BoxView boxes;
    private TextView liveStatus;
    private Switch liveSwitch;
    private boolean resumed;

    @Override
    protected void onCreate(Bundle state) {
        super.onCreate(state);
        setContentView(R.layout.activity_main);
        settings = new AppSettings(this);
        problem = new ProblemPanel(this, this);
        results = new Results(this);
        ((ListView) findViewById(R.id.results)).setAdapter(results);
        preview = (TextureView) findViewById(R.id.preview);
        preview.setSurfaceTextureListener(this);
        camera = new Camera(this, preview, this);
        picture = (ImageView) findViewById(R.id.picture);
        boxes = (BoxView) findViewById(R.id.boxes);
        liveStatus = (TextView) findViewById(R.id.live_status);
        arrange(getResources().getConfiguration());
        setUpModels();
        setUpButtons();
    }

    /** Side by side when the screen is wide: turning the phone does not make this activity anew. */
    private void arrange(Configuration screen) {
        boolean wide = screen.orientation == Configuration.ORIENTATION_LANDSCAPE;
        LinearLayout content = (LinearLayout) findViewById(R.id.content);
        content.setOrientation(wide ? LinearLayout.HORIZONTAL : LinearLayout.VERTICAL);
        for (int i = 0; i < content.getChildCount(); i++) {
            ViewGroup.LayoutParams part = content.getChildAt(i).getLayoutParams();
            part.width = wide ? 0 : ViewGroup.LayoutParams.MATCH_PARENT;
            part.height = wide ? ViewGroup.LayoutParams.MATCH_PARENT : 0;
        }
        content.requestLayout();
    }

    private void setUpModels() {
        modelAdapter = new ArrayAdapter<>(this, android.R.layout.simple_spinner_item, models);
        modelAdapter.setDropDownViewResource(android.R.layout.simple_spinner_dropdown_item);
        modelSpinner = (Spinner) findViewById(R.id.models);
        modelSpinner.setAdapter(modelAdapter);
        modelSpinner.setOnItemSelectedListener(new AdapterView.OnItemSelectedListener() {
            @Override
            public void onItemSelected(AdapterView<?> parent, View view, int position, long id) {
                if (!models.get(position).equals(settings.model())) {
                    settings.setModel(models.get(position));
                    setLive(liveSwitch.isChecked()); // a stream belongs to one model
                }
            }

            @Override
            public void onNothingSelected(AdapterView<?> parent) {
                settings.setModel(null);
            }
        });
    }

    private void setUpButtons() {
        findViewById(R.id.shutter).setOnClickListener(new View.OnClickListener() {
            @Override
            public void onClick(View view) {
                showCamera();
                if (camera.isOpen()) {
                    camera.takePicture();
                } else {
                    openCamera(true);
                }
            }
        });
        findViewById(R.id.gallery).setOnClickListener(new View.OnClickListener() {
            @Override
            public void onClick(View view) {
                Intent pick = new Intent(Intent.ACTION_GET_CONTENT).setType("image/*");
                try {
                    startActivityForResult(pick.addCategory(Intent.CATEGORY_OPENABLE), PICK_PICTURE);
                } catch (ActivityNotFoundException none) {
                    say(getString(R.string.no_picker));
                }
            }
        });
        picture.setOnClickListener(new View.OnClickListener() {
            @Override
            public void onClick(View view) {
                showCamera();
            }
        });
        liveSwitch = (Switch) findViewById(R.id.live);
        liveSwitch.setOnCheckedChangeListener(new CompoundButton.OnCheckedChangeListener() {
            @Override
            public void onCheckedChanged(CompoundButton button, boolean on) {
                showCamera();
                setLive(on);
            }
        });
    }

    // Life

    @Override
    protected void onResume() {
        super.onResume();
        resumed = true;
        connect();
        openCamera(false);
    }

    @Override
    protected void onPause() {
        resumed = false;
        setLive(false);
        camera.close();
        if (start != null) {
            start.cancel();
            start = null;
        }
        super.onPause();
    }

    @Override
    protected void onDestroy() {
        background.shutdown();
        if (server != null) {
            server.close();
        }
        super.onDestroy();
    }

    @Override
    public void onConfigurationChanged(Configuration changed) {
        super.onConfigurationChanged(changed);
        arrange(changed);
        camera.turned(displayDegrees());
    }

    @Override
    public boolean onCreateOptionsMenu(Menu menu) {
        MenuItem item = menu.add(Menu.NONE, SETTINGS_ITEM, Menu.NONE, R.string.settings);
        item.setShowAsAction(MenuItem.SHOW_AS_ACTION_IF_ROOM);
        return true;
    }

    @Override
    public boolean onOptionsItemSelected(MenuItem item) {
        if (item.getItemId() == SETTINGS_ITEM) {
            startActivity(new Intent(this, SettingsActivity.class));
            return true;
        }
        return super.onOptionsItemSelected(item);
    }

    // The server

    private void connect() {
        if (server == null || !settings.fingerprint().equals(serverIs)) {
            if (server != null) {
                server.close();
            }
            serverIs = settings.fingerprint();
            server = build();
        }
        listModels();
    }

    private PocketServe build() {
        try {
            return settings.server().callbackExecutor(mainThread).build();
        } catch (PocketServeException unreadable) {
            // Only a token file can be unreadable, and this app has none.
            throw new IllegalStateException(unreadable);
        }
    }

    private void listModels() {
        server.async().index(new Callback<List<ModelState>>() {
            @Override
            public void onResult(List<ModelState> states) {
                if (!resumed) {
                    return;
                }
                problem.hide();
                Set<String> names = new LinkedHashSet<>();
                for (ModelState each : states) {
                    names.add(each.getName());
                }
                showModels(names);
                setLive(liveSwitch.isChecked());
            }

            @Override
            public void onError(PocketServeException error) {
                if (resumed && !PocketServeException.CLOSED.equals(error.getCode())) {
                    problem.show(error);
                }
            }
        });
    }

    private void showModels(Set<String> names) {
        String chosen = settings.model();
        models.clear();
        models.addAll(names);
        Collections.sort(models);
        modelAdapter.notifyDataSetChanged();
        int position = models.indexOf(chosen);
        if (models.isEmpty()) {
            settings.setModel(null);
            say(getString(R.string.no_models));
        } else {
            modelSpinner.setSelection(Math.max(0, position));
            settings.setModel(models.get(Math.max(0, position)));
        }
    }

    @Override
    public void onRetry() {
        connect();
        openCamera(false);
    }

    @Override
    public void onAction(Problem.Action action) {
        if (action == Problem.Action.SETTINGS) {
            startActivity(new Intent(this, SettingsActivity.class));
        } else if (action == Problem.Action.CAMERA) {
            openCamera(true);
        } else if (action == Problem.Action.START) {
            startServer();
        }
    }

    private void startServer() {
        Termux termux = new Termux(this);
        switch (termux.state()) {
            case MISSING:
                cannotStart(getString(R.string.termux_missing));
                return;
            case CANNOT:
                cannotStart(getString(R.string.termux_play));
                return;
            case NOT_ALLOWED:
                requestPermissions(new String[] {Termux.PERMISSION}, ASK_TERMUX);
                return;
            default:
                break;
        }
        String refused = termux.startServer(settings);
        if (refused != null) {
            cannotStart(getString(R.string.termux_refused, refused) + '\n' + getString(R.string.termux_hint));
            return;
        }
        problem.showStarting();
        start = new ServerStart(server, new ServerStart.Listener() {
            @Override
            public void onStarted() {
                start = null;
                listModels();
            }

            @Override
            public void onNotStarted(PocketServeException error) {
                start = null;
                if (error != null && Problem.of(error) != Problem.UNREACHABLE) {
                    problem.show(error);
                } else {
                    cannotStart(getString(R.string.start_timeout, ServerStart.LIMIT_S) + '\n'
                            + getString(R.string.termux_hint));
                }
            }
        });
        start.ask();
    }

    private void cannotStart(String why) {
        problem.show(getString(R.string.problem_unreachable), why, Problem.Action.START);
    }

    // Pictures

    private void ask(final byte[] encoded) {
        final String model = settings.model();
        if (model == null) {
            say(getString(R.string.no_models));
            return;
        }
        if (background.isShutdown()) { // the camera was a little late
            return;
        }
        background.execute(new Runnable() {
            @Override
            public void run() {
                try {
                    final Pictures decoded = Pictures.decode(encoded, getCacheDir());
                    mainThread.execute(new Runnable() {
                        @Override
                        public void run() {
                            ask(model, decoded);
                        }
                    });
                } catch (IOException | OutOfMemoryError error) {
                    say(getString(R.string.picture_failed));
                }
            }
        });
    }

    private void ask(final String model, final Pictures asked) {
        picture.setImageBitmap(asked.shown);
        picture.setVisibility(View.VISIBLE);
        boxes.clear();
        say(getString(R.string.asking, model));
        final long began = SystemClock.elapsedRealtime();
        server.async().classify(model, asked.encoded, null, new Callback<Prediction>() {
            @Override
            public void onResult(Prediction answer) {
                problem.hide();
                results.add(answer, SystemClock.elapsedRealtime() - began);
                boxes.show(answer.getLabels(), asked.width, asked.height, false);
                say(getString(R.string.result_line, model, answer.summary()));
            }

            @Override
            public void onError(PocketServeException error) {
                problem.show(error);
            }
        });
    }

    @Override
    protected void onActivityResult(int request, int result, Intent data) {
        if (request != PICK_PICTURE || result != RESULT_OK || data == null || data.getData() == null) {
            return;
        }
        final Uri address = data.getData();
        background.execute(new Runnable() {
            @Override
            public void run() {
                try {
                    onPicture(Pictures.read(getContentResolver(), address));
                } catch (Pictures.TooLargeException error) {
                    say(getString(R.string.picture_too_large, Pictures.MAX_MEGABYTES));
                } catch (IOException | SecurityException error) {
                    say(getString(R.string.picture_failed));
                }
            }
        });
    }

    private void showCamera() {
        picture.setVisibility(View.GONE);
        picture.setImageDrawable(null);
        boxes.clear();
    }

    private void say(final String text) {
        mainThread.execute(new Runnable() {
            @Override
            public void run() {
                Toast.makeText(MainActivity.this, text, Toast.LENGTH_SHORT).show();
            }
        });
    }

    // The camera and its live mode

    private void openCamera(boolean ask) {
        if (camera.isOpen() || !preview.isAvailable() || !resumed) {
            return;
        }
        if (checkSelfPermission(Manifest.permission.CAMERA) == PackageManager.PERMISSION_GRANTED) {
            camera.turned(displayDegrees());
            camera.open();
            setLive(liveSwitch.isChecked());
        } else if (ask) {
            requestPermissions(new String[] {Manifest.permission.CAMERA}, ASK_CAMERA);
        }
    }

    @Override
    public void onRequestPermissionsResult(int request, String[] permissions, int[] granted) {
        boolean given = granted.length > 0 && granted[0] == PackageManager.PERMISSION_GRANTED;
        if (request == ASK_CAMERA && given) {
            problem.hide();
            openCamera(false);
        } else if (request == ASK_CAMERA) {
            problem.show(getString(R.string.problem_other), getString(R.string.camera_permission),
                    Problem.Action.CAMERA);
        } else if (request == ASK_TERMUX && given) {
            startServer();
        } else if (request == ASK_TERMUX && granted.length > 0) {
            cannotStart(getString(R.string.termux_permission));
        }
    }

    private int displayDegrees() {
        return getWindowManager().getDefaultDisplay().getRotation() * 90;
    }

    private void setLive(boolean on) {
        LiveMode before = live;
        live = null;
        if (before != null) {
            before.close();
        }
        String model = settings.model();
        boolean starts = on && resumed && model != null && server != null;
        if (starts) {
            live = new LiveMode(server, model, settings.rawFrames(), this);
        }
        camera.setLive(starts);
        liveStatus.setVisibility(starts ? View.VISIBLE : View.GONE);
        liveStatus.setText("");
        if (!starts && before != null) {
            boxes.clear();
        }
    }

    @Override
    public void onLive(Prediction prediction, int width, int height, double framesPerSecond, long latencyMs) {
        if (live == null) {
            return;
        }
        liveStatus.setText(getString(R.string.live_status, prediction.summary(), framesPerSecond, latencyMs));
        boxes.show(prediction.getLabels(), width, height, true);
    }

    @Override
    public void onLiveError(PocketServeException error) {
        if (live != null && !error.isRetryable() && !PocketServeException.CANCELLED.equals(error.getCode())) {
            liveSwitch.setChecked(false);
            problem.show(error);
        }
    }

    @Override
    public void onPicture(byte[] jpeg) {
        ask(jpeg);
    }

    @Override
    public void onFrame(Image image, int rotation) {
        LiveMode now = live;
        if (now != null) {
            now.offer(image, rotation);
        }
    }

    @Override
    public void onCameraError(String why) {
        say(getString(R.string.camera_failed, why));
    }

    @Override
    public void onSurfaceTextureAvailable(SurfaceTexture texture, int width, int height) {
        openCamera(true);
    }

    @Override
    public void onSurfaceTextureSizeChanged(SurfaceTexture texture, int width, int height) {
        camera.turned(displayDegrees());
    }

    @Override
    public boolean onSurfaceTextureDestroyed(SurfaceTexture texture) {
        camera.close();
        return true;
    }

    @Override
    public void onSurfaceTextureUpdated(SurfaceTexture texture) {
        // Nothing is drawn by us.
    }
}
