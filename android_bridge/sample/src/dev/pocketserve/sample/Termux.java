package dev.pocketserve.sample;

import android.app.PendingIntent;
import android.content.Context;
import android.content.Intent;
import android.content.pm.PackageManager;
import android.os.Build;
import java.lang.reflect.InvocationTargetException;

/**
 * Runs commands in Termux with its RUN_COMMAND intent.
 *
 * <p>The server is started without a PendingIntent for its outcome, because Termux ends commands with a PendingIntent
 * when its service ends.
 */
final class Termux {
    static final String PERMISSION = "com.termux.permission.RUN_COMMAND";
    private static final String PACKAGE = "com.termux";
    private static final String SERVICE = "com.termux.app.RunCommandService";
    private static final String ACTION = "com.termux.RUN_COMMAND";
    private static final String EXTRA = "com.termux.RUN_COMMAND_";
    /** PendingIntent.FLAG_MUTABLE, which Android 6 lacks and Android 12 requires, because Termux adds the outcome. */
    private static final int FLAG_MUTABLE = 1 << 25;

    private final Context context;

    /** Returns whether commands can run, or the reason why not. */
    enum State { READY, MISSING, CANNOT, NOT_ALLOWED }

    Termux(Context context) {
        this.context = context;
    }

    State state() {
        PackageManager packages = context.getPackageManager();
        try {
            packages.getPackageInfo(PACKAGE, 0);
        } catch (PackageManager.NameNotFoundException missing) {
            return State.MISSING;
        }
        if (packages.resolveService(intent(), 0) == null) {
            return State.CANNOT;
        }
        boolean allowed = context.checkSelfPermission(PERMISSION) == PackageManager.PERMISSION_GRANTED;
        return allowed ? State.READY : State.NOT_ALLOWED;
    }

    /**
     * Starts the server in the background.
     *
     * @return null when Termux took the command, else why not
     */
    String startServer(AppSettings settings) {
        String folder = settings.modelsFolder();
        String[] arguments = folder.isEmpty() ? new String[] {"serve"} : new String[] {"serve", folder};
        return send(command(settings.program(), arguments));
    }

    /**
     * Requests the token; {@link CommandResult} receives the outcome.
     *
     * @return null when Termux took the command, else why not
     */
    String askForToken(AppSettings settings) {
        Intent command = command(settings.program(), "token");
        Intent answer = new Intent(context, CommandResult.class);
        int flags = PendingIntent.FLAG_ONE_SHOT | PendingIntent.FLAG_UPDATE_CURRENT;
        if (Build.VERSION.SDK_INT >= 31) {
            flags |= FLAG_MUTABLE;
        }
        command.putExtra(EXTRA + "PENDING_INTENT", PendingIntent.getBroadcast(context, 1, answer, flags));
        return send(command);
    }

    private static Intent intent() {
        return new Intent(ACTION).setClassName(PACKAGE, SERVICE);
    }

    private static Intent command(String program, String... arguments) {
        return intent().putExtra(EXTRA + "PATH", program)
                .putExtra(EXTRA + "ARGUMENTS", arguments)
                .putExtra(EXTRA + "BACKGROUND", true);
    }

    private String send(Intent command) {
        try {
            if (Build.VERSION.SDK_INT >= 26) {
                // Termux may be in the background. The method is called by reflection, because Android 6 lacks it.
                Context.class.getMethod("startForegroundService", Intent.class).invoke(context, command);
            } else {
                context.startService(command);
            }
            return null;
        } catch (InvocationTargetException error) {
            return String.valueOf(error.getCause().getMessage());
        } catch (ReflectiveOperationException | SecurityException | IllegalStateException error) {
            return String.valueOf(error.getMessage());
        }
    }
}
