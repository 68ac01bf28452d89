package dev.pocketserve.sample;

import android.content.BroadcastReceiver;
import android.content.Context;
import android.content.Intent;
import android.os.Bundle;
import android.widget.Toast;
import dev.pocketserve.sample.pure.TokenText;

/**
 * Receives the token that {@code pocketserve token} printed in Termux. Not exported, so only our PendingIntent can
 * reach it.
 */
public final class CommandResult extends BroadcastReceiver {
    /** Makes an open settings screen reload. */
    static Runnable onToken;

    private static final int RESULT_OK = -1;

    @Override
    public void onReceive(Context context, Intent intent) {
        Bundle result = intent.getBundleExtra("result");
        if (result == null) {
            return;
        }
        TokenText token = TokenText.read(result.getString("stdout"));
        if (token != null && result.getInt("exitCode", 1) == 0) {
            new AppSettings(context).setToken(token);
            Toast.makeText(context, R.string.token_saved, Toast.LENGTH_SHORT).show();
            if (onToken != null) {
                onToken.run();
            }
            return;
        }
        boolean ran = result.getInt("err", RESULT_OK) == RESULT_OK;
        String output = result.getString(ran ? "stderr" : "errmsg");
        String message = output == null || output.trim().isEmpty() ? "?" : output.trim();
        String text = context.getString(R.string.termux_refused, message.substring(0, Math.min(300, message.length())));
        Toast.makeText(context, text, Toast.LENGTH_LONG).show();
    }
}
