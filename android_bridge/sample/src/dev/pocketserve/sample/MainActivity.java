package dev.pocketserve.sample;

import android.Manifest;
import android.app.Activity;
import android.content.ActivityNotFoundException;
import android.content.Intent;
import android.content.pm.PackageManager;
import android.content.res.Configuration;
import android.graphics.SurfaceTexture;
import android.media.Image;
import android.os.Bundle;
import android.view.Menu;
import android.view.MenuItem;
import android.view.TextureView;
import dev.pocketserve.bridge.Callback;
import dev.pocketserve.bridge.ModelState;
import dev.pocketserve.bridge.PocketServeException;
import java.util.List;

/**
 * The one screen: camera, picture, answers. Here is what only an activity can do: its life, permissions and other
 * screens. {@link MainScreen} has the views, {@link PictureQuestions} and {@link LiveView} ask the server,
 * {@link Starter} starts it.
 */
public final class MainActivity extends Activity implements MainScreen.Listener, ModelChoice.Listener,
        Starter.Listener, ProblemPanel.Listener, Camera.Listener, TextureView.SurfaceTextureListener {
    private static final int ASK_CAMERA = 1;
    private static final int ASK_TERMUX = 2;
    private static final int PICK_PICTURE = 3;
    private static final int SETTINGS_ITEM = 1;

    private MainScreen screen;
    private ProblemPanel problem;
    private ModelChoice models;
    private Client client;
    private Starter starter;
    private PictureQuestions pictures;
    private Camera camera;
    private LiveView live;
    private boolean resumed;

    @Override
    protected void onCreate(Bundle state) {
        super.onCreate(state);
        AppSettings settings = new AppSettings(this);
        screen = new MainScreen(this, this);
        problem = new ProblemPanel(this, this);
        models = new ModelChoice(this, settings, this);
        client = new Client(settings, new MainExecutor());
        starter = new Starter(this, settings, problem, this);
        pictures = new PictureQuestions(this, settings, client, screen, problem);
        camera = new Camera(this, screen.preview, this);
        live = new LiveView(settings, camera, screen, problem);
        screen.preview.setSurfaceTextureListener(this);
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
        starter.cancel();
        super.onPause();
    }

    @Override
    protected void onDestroy() {
        pictures.close();
        client.close();
        super.onDestroy();
    }

    @Override
    public void onConfigurationChanged(Configuration changed) {
        super.onConfigurationChanged(changed);
        screen.arrange(changed);
        camera.setRotation(screen.degrees());
    }

    // The server

    private void connect() {
        client.renew();
        listModels();
    }

    private void listModels() {
        client.get().async().index(new Callback<List<ModelState>>() {
            @Override
            public void onResult(List<ModelState> states) {
                if (!resumed) {
                    return;
                }
                problem.hide();
                if (!models.offer(states)) {
                    screen.say(getString(R.string.no_models));
                }
                setLive(screen.wantsLive());
            }

            @Override
            public void onError(PocketServeException error) {
                if (resumed && !PocketServeException.CLOSED.equals(error.getCode())) {
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
        openCamera(false);
    }

    @Override
    public void onAction(Problem.Action action) {
        if (action == Problem.Action.SETTINGS) {
            showSettings();
        } else if (action == Problem.Action.CAMERA) {
            openCamera(true);
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
        boolean permitted = granted.length > 0 && granted[0] == PackageManager.PERMISSION_GRANTED;
        if (request == ASK_CAMERA && permitted) {
            problem.hide();
            openCamera(false);
        } else if (request == ASK_CAMERA) {
            problem.show(getString(R.string.problem_other), getString(R.string.camera_permission),
                    Problem.Action.CAMERA);
        } else if (request == ASK_TERMUX && permitted) {
            starter.start(client.get());
        } else if (request == ASK_TERMUX && granted.length > 0) {
            starter.notAllowed();
        }
    }

    // Other screens

    @Override
    public boolean onCreateOptionsMenu(Menu menu) {
        MenuItem item = menu.add(Menu.NONE, SETTINGS_ITEM, Menu.NONE, R.string.settings);
        item.setShowAsAction(MenuItem.SHOW_AS_ACTION_IF_ROOM);
        return true;
    }

    @Override
    public boolean onOptionsItemSelected(MenuItem item) {
        if (item.getItemId() == SETTINGS_ITEM) {
            showSettings();
            return true;
        }
        return super.onOptionsItemSelected(item);
    }

    private void showSettings() {
        startActivity(new Intent(this, SettingsActivity.class));
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
            openCamera(true);
        }
    }

    @Override
    public void onLiveSwitched(boolean on) {
        setLive(on);
    }

    private void setLive(boolean on) {
        live.set(on && resumed, client.get());
    }

    private void openCamera(boolean ask) {
        if (camera.isOpen() || !screen.preview.isAvailable() || !resumed) {
            return;
        }
        if (checkSelfPermission(Manifest.permission.CAMERA) == PackageManager.PERMISSION_GRANTED) {
            camera.setRotation(screen.degrees());
            camera.open();
            setLive(screen.wantsLive());
        } else if (ask) {
            requestPermissions(new String[] {Manifest.permission.CAMERA}, ASK_CAMERA);
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
    public void onCameraError(String reason) {
        screen.say(getString(R.string.camera_failed, reason));
    }

    @Override
    public void onSurfaceTextureAvailable(SurfaceTexture texture, int width, int height) {
        openCamera(true);
    }

    @Override
    public void onSurfaceTextureSizeChanged(SurfaceTexture texture, int width, int height) {
        camera.setRotation(screen.degrees());
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
