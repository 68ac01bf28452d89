package dev.pocketserve.sample;

import android.app.Activity;
import android.content.ActivityNotFoundException;
import android.content.ClipData;
import android.content.ClipboardManager;
import android.content.Context;
import android.content.Intent;
import android.content.pm.PackageManager;
import android.net.Uri;
import android.os.Bundle;
import android.view.MenuItem;
import android.view.View;
import android.view.WindowManager;
import android.widget.ArrayAdapter;
import android.widget.CheckBox;
import android.widget.EditText;
import android.widget.Spinner;
import android.widget.TextView;
import android.widget.Toast;
import android.widget.Toolbar;
import dev.pocketserve.bridge.Pairing;
import dev.pocketserve.bridge.PocketServeException;
import dev.pocketserve.bridge.Transport;
import dev.pocketserve.sample.pure.PairingCode;
import dev.pocketserve.sample.pure.TokenText;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.Charset;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/** Address and start of the server, and the token: from a code, the clipboard, a file or Termux. */
public final class SettingsActivity extends Activity implements View.OnClickListener {
    private static final int PICK_FILE = 1;
    private static final int ASK_TERMUX = 2;
    private static final int SCAN_CODE = 3;
    /** In the order of the spinner. */
    private static final Transport[] TRANSPORTS = {Transport.SOCKET, Transport.HTTP, Transport.AUTO};

    private final ExecutorService background = Executors.newSingleThreadExecutor();
    private final MainExecutor mainThread = new MainExecutor();
    private AppSettings settings;

    @Override
    protected void onCreate(Bundle state) {
        super.onCreate(state);
        // The token must not appear in screenshots, nor in the list of recent apps.
        getWindow().addFlags(WindowManager.LayoutParams.FLAG_SECURE);
        setContentView(R.layout.activity_settings);
        setActionBar((Toolbar) findViewById(R.id.bar));
        SystemBars.keepClear(findViewById(R.id.bar), findViewById(R.id.below_bar));
        if (getActionBar() != null) {
            getActionBar().setDisplayHomeAsUpEnabled(true);
        }
        settings = new AppSettings(this);
        int[] buttons = {R.id.pair, R.id.scan, R.id.paste, R.id.import_file, R.id.from_termux, R.id.forget, R.id.save};
        for (int id : buttons) {
            findViewById(id).setOnClickListener(this);
        }
        ArrayAdapter<String> transports = new ArrayAdapter<>(this, R.layout.item_choice,
                new String[] {getString(R.string.transport_socket), getString(R.string.transport_http),
                    getString(R.string.transport_auto)});
        ((Spinner) findViewById(R.id.transport)).setAdapter(transports);
        if (state == null) {
            fill();
        }
    }

    @Override
    protected void onResume() {
        super.onResume();
        showToken();
        CommandResult.onToken = new Runnable() {
            @Override
            public void run() {
                showToken();
            }
        };
    }

    @Override
    protected void onPause() {
        CommandResult.onToken = null;
        super.onPause();
    }

    @Override
    protected void onDestroy() {
        background.shutdown();
        super.onDestroy();
    }

    private EditText field(int id) {
        return (EditText) findViewById(id);
    }

    private String textOf(int id) {
        return field(id).getText().toString().trim();
    }

    private void fill() {
        field(R.id.http_port).setText(String.valueOf(settings.httpPort()));
        field(R.id.socket_port).setText(String.valueOf(settings.socketPort()));
        field(R.id.program).setText(settings.program());
        field(R.id.models_folder).setText(settings.modelsFolder());
        ((CheckBox) findViewById(R.id.raw_frames)).setChecked(settings.rawFrames());
        for (int i = 0; i < TRANSPORTS.length; i++) {
            if (TRANSPORTS[i] == settings.transport()) {
                ((Spinner) findViewById(R.id.transport)).setSelection(i);
            }
        }
    }

    /** Shows whether there is a token, which can then be forgotten; the token itself is never shown again. */
    private void showToken() {
        boolean isSet = settings.token() != null;
        TextView state = (TextView) findViewById(R.id.token_state);
        state.setText(isSet ? R.string.token_set : R.string.token_unset);
        findViewById(R.id.forget).setVisibility(isSet ? View.VISIBLE : View.GONE);
    }

    @Override
    public void onClick(View button) {
        int id = button.getId(); // no switch: R's numbers are not constants
        if (id == R.id.pair) {
            pair();
        } else if (id == R.id.scan) {
            startActivityForResult(new Intent(this, ScanActivity.class), SCAN_CODE);
        } else if (id == R.id.paste) {
            paste();
        } else if (id == R.id.import_file) {
            pickFile();
        } else if (id == R.id.from_termux) {
            askTermux();
        } else if (id == R.id.forget) {
            settings.setToken(null);
            showToken();
        } else {
            save();
        }
    }

    private void pickFile() {
        Intent pick = new Intent(Intent.ACTION_OPEN_DOCUMENT).addCategory(Intent.CATEGORY_OPENABLE);
        try {
            startActivityForResult(pick.setType("*/*"), PICK_FILE);
        } catch (ActivityNotFoundException none) {
            say(getString(R.string.no_picker));
        }
    }

    private void save() {
        int http = TokenText.port(textOf(R.id.http_port));
        int socket = TokenText.port(textOf(R.id.socket_port));
        if (http < 0 || socket < 0) {
            field(http < 0 ? R.id.http_port : R.id.socket_port).setError(getString(R.string.bad_port));
            return;
        }
        String token = textOf(R.id.token);
        if (!token.isEmpty() && !keep(token)) {
            return;
        }
        int transport = ((Spinner) findViewById(R.id.transport)).getSelectedItemPosition();
        boolean raw = ((CheckBox) findViewById(R.id.raw_frames)).isChecked();
        TokenText pasted = TokenText.read(token);
        settings.setConnection(pasted != null && pasted.httpPort > 0 ? pasted.httpPort : http,
                pasted != null && pasted.socketPort > 0 ? pasted.socketPort : socket, TRANSPORTS[transport], raw);
        settings.setTermux(textOf(R.id.program), textOf(R.id.models_folder));
        say(getString(R.string.saved));
        finish();
    }

    /** Stores a pasted, typed or scanned token, or shows why it is invalid. */
    private boolean keep(String text) {
        TokenText token = TokenText.read(text);
        if (token == null) {
            say(getString(R.string.token_bad));
            return false;
        }
        settings.setToken(token);
        field(R.id.token).setText("");
        showSaved();
        return true;
    }

    /** A token was saved, possibly with ports. */
    private void showSaved() {
        field(R.id.http_port).setText(String.valueOf(settings.httpPort()));
        field(R.id.socket_port).setText(String.valueOf(settings.socketPort()));
        showToken();
        say(getString(R.string.token_saved));
    }

    private void paste() {
        ClipboardManager clipboard = (ClipboardManager) getSystemService(Context.CLIPBOARD_SERVICE);
        ClipData clip = clipboard.getPrimaryClip();
        if (clip == null || clip.getItemCount() == 0) {
            say(getString(R.string.clipboard_empty));
            return;
        }
        keep(String.valueOf(clip.getItemAt(0).coerceToText(this)));
    }

    @Override
    protected void onActivityResult(int request, int result, Intent data) {
        if (request == SCAN_CODE && result == RESULT_OK) {
            showSaved();
        }
        if (request != PICK_FILE || result != RESULT_OK || data == null || data.getData() == null) {
            return;
        }
        final Uri address = data.getData();
        background.execute(new Runnable() {
            @Override
            public void run() {
                final String text = read(address);
                mainThread.execute(new Runnable() {
                    @Override
                    public void run() {
                        keep(text);
                    }
                });
            }
        });
    }

    /** Reads a small text file; returns an empty text if it can't be read or is too large. */
    private String read(Uri address) {
        try (InputStream stream = getContentResolver().openInputStream(address)) {
            return stream == null ? "" : new String(
                    Pictures.read(stream, TokenText.MAX_LENGTH), Charset.forName("US-ASCII"));
        } catch (IOException | SecurityException error) {
            return "";
        }
    }

    private void pair() {
        final String code = PairingCode.digits(textOf(R.id.pair_code));
        final int port = TokenText.port(textOf(R.id.http_port));
        if (code == null) {
            field(R.id.pair_code).setError(getString(R.string.pair_digits));
            return;
        }
        say(getString(R.string.pair_running));
        findViewById(R.id.pair).setEnabled(false);
        background.execute(new Runnable() {
            @Override
            public void run() {
                String message = null;
                String token = null;
                try {
                    token = Pairing.pair(settings.server().httpPort(port > 0 ? port : settings.httpPort()), code);
                } catch (PocketServeException error) {
                    message = explained(error);
                } catch (IllegalArgumentException error) {
                    message = getString(R.string.pair_digits);
                }
                paired(token, message);
            }
        });
    }

    private void paired(final String token, final String message) {
        mainThread.execute(new Runnable() {
            @Override
            public void run() {
                findViewById(R.id.pair).setEnabled(true);
                field(R.id.pair_code).setText("");
                if (token != null) {
                    keep(token);
                    if (CommandResult.onToken != null) {
                        CommandResult.onToken.run(); // a rotated screen is a new instance
                    }
                } else {
                    say(message);
                }
            }
        });
    }

    private String explained(PocketServeException error) {
        if (error.getCode().equals("PAIRING_CLOSED")) {
            return getString(R.string.pair_closed);
        }
        if (error.getCode().equals("PAIRING_REFUSED")) {
            return getString(R.string.pair_refused);
        }
        Problem problem = Problem.of(error);
        return problem.help == 0 ? error.getMessage() : getString(problem.title) + ": " + getString(problem.help);
    }

    private void askTermux() {
        Termux termux = new Termux(this);
        switch (termux.state()) {
            case MISSING:
                say(getString(R.string.termux_missing));
                break;
            case CANNOT:
                say(getString(R.string.termux_play));
                break;
            case NOT_ALLOWED:
                requestPermissions(new String[] {Termux.PERMISSION}, ASK_TERMUX);
                break;
            default:
                String refusal = termux.askForToken(settings);
                if (refusal != null) {
                    say(getString(R.string.termux_refused, refusal));
                }
                break;
        }
    }

    @Override
    public void onRequestPermissionsResult(int request, String[] permissions, int[] granted) {
        if (request == ASK_TERMUX && granted.length > 0) {
            if (granted[0] == PackageManager.PERMISSION_GRANTED) {
                askTermux();
            } else {
                say(getString(R.string.termux_permission));
            }
        }
    }

    @Override
    public boolean onOptionsItemSelected(MenuItem item) {
        if (item.getItemId() == android.R.id.home) {
            finish();
            return true;
        }
        return super.onOptionsItemSelected(item);
    }

    private void say(String text) {
        Toast.makeText(this, text, Toast.LENGTH_LONG).show();
    }
}
