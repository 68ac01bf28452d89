package dev.pocketserve.sample;

import android.app.Activity;
import android.content.Intent;
import android.media.Image;
import android.os.Bundle;
import android.view.MenuItem;
import android.view.TextureView;
import android.view.View;
import android.view.WindowManager;
import android.widget.Button;
import android.widget.TextView;
import android.widget.Toolbar;
import dev.pocketserve.sample.pure.CameraAccess;
import dev.pocketserve.sample.pure.QrScan;

/** Reads the QR code of {@code pocketserve token --qr} with the camera, stores its token, and closes. */
public final class ScanActivity extends Activity implements Camera.Listener, Viewfinder.Listener {
    private final MainExecutor mainThread = new MainExecutor();
    private final QrScan scan = new QrScan();
    private AppSettings settings;
    private Camera camera;
    private Viewfinder viewfinder;
    private CameraAccess access = CameraAccess.CAN_ASK;

    @Override
    protected void onCreate(Bundle state) {
        super.onCreate(state);
        // Anyone who sees the code has the token: it must not appear in screenshots.
        getWindow().addFlags(WindowManager.LayoutParams.FLAG_SECURE);
        setContentView(R.layout.activity_scan);
        setActionBar((Toolbar) findViewById(R.id.bar));
        if (getActionBar() != null) {
            getActionBar().setDisplayHomeAsUpEnabled(true);
        }
        SystemBars.keepClear(findViewById(R.id.bar), findViewById(R.id.below_bar));
        settings = new AppSettings(this);
        TextureView preview = (TextureView) findViewById(R.id.scan_preview);
        camera = new Camera(this, preview, this);
        viewfinder = new Viewfinder(this, preview, settings, camera, this);
        findViewById(R.id.scan_allow).setOnClickListener(new View.OnClickListener() {
            @Override
            public void onClick(View view) {
                allow();
            }
        });
    }

    @Override
    protected void onStart() {
        super.onStart();
        viewfinder.start();
    }

    @Override
    protected void onStop() {
        viewfinder.stop();
        super.onStop();
    }

    private void allow() {
        if (access == CameraAccess.ONLY_SETTINGS) {
            startActivity(ProblemPanel.systemSettings(this));
        } else {
            viewfinder.open(true);
        }
    }

    @Override
    public void onRequestPermissionsResult(int request, String[] permissions, int[] granted) {
        viewfinder.onAnswer(granted);
    }

    @Override
    public void onCameraOpened() {
        show(R.string.scan_hint);
        findViewById(R.id.scan_allow).setVisibility(View.GONE);
        camera.setLive(true);
    }

    @Override
    public void onCameraRefused(CameraAccess refused) {
        access = refused;
        boolean settled = refused == CameraAccess.ONLY_SETTINGS;
        show(settled ? R.string.camera_settings_scan : R.string.camera_permission_scan);
        Button allow = (Button) findViewById(R.id.scan_allow);
        allow.setText(settled ? R.string.system_settings : R.string.camera_allow);
        allow.setVisibility(View.VISIBLE);
    }

    private void show(int text) {
        TextView hint = (TextView) findViewById(R.id.scan_hint);
        if (!getString(text).contentEquals(hint.getText())) { // a screen reader announces it each time it is set
            hint.setText(text);
        }
    }

    @Override
    public void onFrame(Image image, int rotation) {
        Image.Plane luma = image.getPlanes()[0];
        final QrScan.State found =
                scan.offer(luma.getBuffer(), luma.getRowStride(), image.getWidth(), image.getHeight());
        if (found != QrScan.State.LOOKING) {
            mainThread.execute(new Runnable() {
                @Override
                public void run() {
                    tell(found);
                }
            });
        }
    }

    private void tell(QrScan.State found) {
        if (isFinishing()) {
            return;
        }
        if (found == QrScan.State.FOREIGN) {
            show(R.string.scan_foreign);
            return;
        }
        settings.setToken(scan.token());
        setResult(RESULT_OK, new Intent());
        finish();
    }

    @Override
    public void onPicture(byte[] jpeg) {
        // This screen takes no pictures.
    }

    @Override
    public void onCameraError(final int reason) {
        mainThread.execute(new Runnable() {
            @Override
            public void run() {
                show(reason);
            }
        });
    }

    @Override
    public boolean onOptionsItemSelected(MenuItem item) {
        finish();
        return true;
    }
}
