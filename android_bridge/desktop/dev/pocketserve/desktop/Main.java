package dev.pocketserve.desktop;

import dev.pocketserve.bridge.PocketServe;
import dev.pocketserve.bridge.PocketServeException;
import dev.pocketserve.bridge.PredictOptions;
import dev.pocketserve.bridge.Prediction;
import java.io.File;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;

/**
 * The companion app without a phone: sends every picture of a folder through the same library and prints what the
 * toast would say. Exit code 0 when all were answered, 1 when not, 2 for a wrong command line.
 */
public final class Main {
    private static final String USAGE = "usage: Main --model MODEL [--port PORT] [--token-file FILE] "
            + "[--transport socket|http] [--version V] FOLDER";
    private static final List<String> ENDINGS =
            Arrays.asList(".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff");

    private Main() {
    }

    /**
     * Runs it.
     *
     * @param arguments see the usage
     * @throws IOException when the output cannot be written
     */
    public static void main(String[] arguments) throws IOException {
        PrintStream out = new PrintStream(System.out, true, "UTF-8");
        PrintStream err = new PrintStream(System.err, true, "UTF-8");
        int code;
        try {
            code = run(Arguments.parse(arguments, "model", "port", "token-file", "transport", "version"), out, err);
        } catch (Arguments.UsageException error) {
            err.println(Printable.of(error.getMessage()));
            err.println(USAGE);
            code = 2;
        }
        System.exit(code);
    }

    private static int run(Arguments arguments, PrintStream out, PrintStream err) throws Arguments.UsageException {
        String model = arguments.text("model", null);
        if (model == null || arguments.plain() == null) {
            throw new Arguments.UsageException("--model and a folder are needed");
        }
        List<File> pictures = pictures(new File(arguments.plain()));
        PredictOptions options = new PredictOptions();
        if (arguments.text("version", null) != null) {
            options.version(arguments.text("version", null));
        }
        int failed = 0;
        try (PocketServe server = arguments.client()) {
            for (File picture : pictures) {
                try {
                    Prediction answer = server.classify(model, read(picture), options);
                    out.println(Printable.of(picture.getName() + ": " + answer.summary()));
                } catch (PocketServeException error) {
                    if (error.getStatus() == 0) {
                        // No answer at all: the next picture would fare no better.
                        throw error;
                    }
                    err.println(Printable.of(picture.getName() + ": " + error));
                    failed++;
                } catch (IOException error) {
                    err.println(Printable.of(picture.getName() + ": cannot be read (" + error.getMessage() + ")"));
                    failed++;
                }
            }
        } catch (PocketServeException error) {
            err.println(Printable.of(error));
            return 1;
        }
        return failed == 0 ? 0 : 1;
    }

    private static List<File> pictures(File folder) throws Arguments.UsageException {
        File[] all = folder.listFiles();
        if (all == null) {
            throw new Arguments.UsageException(folder + " is not a readable folder");
        }
        Arrays.sort(all);
        List<File> pictures = new ArrayList<>();
        for (File file : all) {
            String name = file.getName().toLowerCase(Locale.ROOT);
            int dot = name.lastIndexOf('.');
            if (dot >= 0 && ENDINGS.contains(name.substring(dot))) {
                pictures.add(file);
            }
        }
        if (pictures.isEmpty()) {
            throw new Arguments.UsageException("there are no pictures in " + folder);
        }
        return pictures;
    }

    private static byte[] read(File file) throws IOException {
        byte[] bytes = new byte[(int) Math.min(Integer.MAX_VALUE - 8, file.length())];
        try (InputStream in = new FileInputStream(file)) {
            int filled = 0;
            while (filled < bytes.length) {
                int count = in.read(bytes, filled, bytes.length - filled);
                if (count < 0) {
                    throw new IOException("it became shorter");
                }
                filled += count;
            }
        }
        return bytes;
    }
}
