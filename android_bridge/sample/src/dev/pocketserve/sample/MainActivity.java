package dev.pocketserve.sample;

import android.app.Activity;
import android.content.ActivityNotFoundException;
import android.content.Intent;
import android.content.pm.PackageManager;
import android.content.res.Configuration;
import android.media.Image;
import android.net.Uri;
import android.os.Bundle;
import android.os.Parcelable;
import android.view.Menu;
import android.view.MenuItem;
import dev.pocketserve.bridge.Callback;
import dev.pocketserve.bridge.ModelState;
import dev.pocketserve.bridge.PocketServeException;
import dev.pocketserve.sample.pure.CameraAccess;
import dev.pocketserve.sample.pure.SharedPicture;
import java.util.List;

/**
 * The first screen: camera, picture, answers. This class has the lifecycle, permissions and other screens. {@link
 * MainScreen} has the views, {@link PictureQuestions} and {@link LiveView} send requests, {@link Starter} starts the
 * server. Camera and connection exist from onStart to onStop: nothing runs in the background.
 */
public final class MainActivity extends Activity implements MainScreen.Listener, ModelChoice.Listener,
        Starter.Listener, ProblemPanel.Listener, Camera.Listener, Viewfinder.Listener {
    private static final int ASK_TERMUX = 2;
    private static final int PICK_PICTURE = 3;
    private static final int SETTINGS_ITEM = 1;

    private Shown shown;
    private MainScreen screen;
    private ProblemPanel problem;
    private ModelChoice models;
    private Client client;
    private Starter starter;
    private PictureQuestions pictures;
    private Camera camera;
    private Viewfinder viewfinder;
    private LiveView live;
    private boolean started;

    @Override
    protected void onCreate(Bundle state) {
        super.onCreate(state);
        AppSettings settings = new AppSettings(this);
        Object before = getLastNonConfigurationInstance();
        shown = before instanceof Shown ? (Shown) before : new Shown();
        screen = new MainScreen(this, shown, this);
        problem = new ProblemPanel(this, this);
        models = new ModelChoice(this, settings, this);
        client = new Client(settings, new MainExecutor());
        starter = new Starter(this, settings, problem, this);
        pictures = new PictureQuestions(this, settings, client, screen, problem, shown);
        camera = new Camera(this, screen.preview, this);
        viewfinder = new Viewfinder(this, screen.preview, settings, camera, this);
        live = new LiveView(settings, camera, screen, problem);
        if (state == null) {
            takeShared(getIntent());
        }
    }

    // Life

    @Override
    protected void onStart() {
        super.onStart();
        started = true;
        connect();
        viewfinder.start();
    }

    @Override
    protected void onStop() {
        started = false;
        setLive(false);
        viewfinder.stop();
        starter.cancel();
        client.close();
        super.onStop();
    }

    @Override
    public Object onRetainNonConfigurationInstance() {
        return shown;
    }

    @Override
    protected void onDestroy() {
        pictures.close();
        super.onDestroy();
    }

    @Override
    public void onConfigurationChanged(Configuration changed) {
        super.onConfigurationChanged(changed);
        screen.arrange(changed);
        viewfinder.turn();
    }

    // Pictures that other apps share

    @Override
    protected void onNewIntent(Intent intent) {
        super.onNewIntent(intent);
        setIntent(intent);
        takeShared(intent);
    }

    private void takeShared(Intent intent) {
        if (!Intent.ACTION_SEND.equals(intent.getAction())) {
            return;
        }
        Parcelable extra = intent.getParcelableExtra(Intent.EXTRA_STREAM);
        Uri address = extra instanceof Uri ? (Uri) extra : null;
        viewfinder.waitToAsk();
        if (address != null && SharedPicture.accepted(intent.getType(), address.getScheme())) {
            pictures.ask(address);
        } else {
            screen.say(getString(R.string.picture_failed));
        }
    }

    // The server

    private void connect() {
        client.open();
        listModels();
    }

    private void listModels() {
        client.get().async().index(new Callback<List<ModelState>>() {
            @Override
            public void onResult(List<ModelState> states) {
                if (!started) {
                    return;
                }
                problem.hideServer();
                if (models.offer(states)) {
                    pictures.resume();
                } else {
                    screen.say(getString(R.string.no_models));
                }
                setLive(screen.wantsLive());
            }

            @Override
            public void onError(PocketServeException error) {
                if (started && !Problem.isOurs(error)) {
                    problem.show(error);
                }
            }
        });
    }

    @Override
    public void onModelChosen() {
        setLive(screen.wantsLive()); // a stream belongs to one model
    }

    @Override
    public void onStarted() {
        listModels();
    }

    // Problems and their buttons

    @Override
    public void onRetry() {
        connect();
        viewfinder.open(false);
    }

    @Override
    public void onAction(Problem.Action action) {
        if (action == Problem.Action.SETTINGS) {
            startActivity(new Intent(this, SettingsActivity.class));
        } else if (action == Problem.Action.SYSTEM_SETTINGS) {
            startActivity(ProblemPanel.systemSettings(this));
        } else if (action == Problem.Action.CAMERA) {
            viewfinder.open(true);
        } else if (action == Problem.Action.START) {
            starter.start(client.get());
        }
    }

    @Override
    public void onTermuxPermissionNeeded() {
        requestPermissions(new String[] {Termux.PERMISSION}, ASK_TERMUX);
    }

    @Override
    public void onRequestPermissionsResult(int request, String[] permissions, int[] granted) {
        if (request == Viewfinder.ASK_CAMERA) {
            viewfinder.onAnswer(granted);
        } else if (request == ASK_TERMUX && granted.length > 0) {
            if (granted[0] == PackageManager.PERMISSION_GRANTED) {
                starter.start(client.get());
            } else {
                starter.notAllowed();
            }
        }
    }

    // Other screens

    @Override
    public boolean onCreateOptionsMenu(Menu menu) {
        MenuItem item = menu.add(Menu.NONE, SETTINGS_ITEM, Menu.NONE, R.string.settings);
        item.setIcon(R.drawable.ic_settings);
        item.setShowAsAction(MenuItem.SHOW_AS_ACTION_ALWAYS);
        return true;
    }

    @Override
    public boolean onOptionsItemSelected(MenuItem item) {
        startActivity(new Intent(this, SettingsActivity.class));
        return true;
    }

    @Override
    public void onGallery() {
        Intent pick = new Intent(Intent.ACTION_GET_CONTENT).setType("image/*");
        try {
            startActivityForResult(pick.addCategory(Intent.CATEGORY_OPENABLE), PICK_PICTURE);
        } catch (ActivityNotFoundException none) {
            screen.say(getString(R.string.no_picker));
        }
    }

    @Override
    protected void onActivityResult(int request, int result, Intent data) {
        if (request == PICK_PICTURE && result == RESULT_OK && data != null && data.getData() != null) {
            pictures.ask(data.getData());
        }
    }

    // The camera

    @Override
    public void onShutter() {
        if (camera.isOpen()) {
            camera.takePicture();
        } else {
            viewfinder.open(true);
        }
    }

    @Override
    public void onLiveSwitched(boolean on) {
        setLive(on);
    }

    private void setLive(boolean on) {
        live.set(on && started, client.get());
    }

    @Override
    public void onCameraOpened() {
        problem.hideCamera();
        setLive(screen.wantsLive());
    }

    @Override
    public void onCameraRefused(CameraAccess access) {
        if (shown.picture == null) { // a picture needs no camera
            problem.show(access);
        }
    }

    @Override
    public void onPicture(byte[] jpeg) {
        pictures.ask(jpeg);
    }

    @Override
    public void onFrame(Image image, int rotation) {
        live.offer(image, rotation);
    }

    @Override
    public void onCameraError(int reason) {
        screen.say(getString(reason));
    }
}
