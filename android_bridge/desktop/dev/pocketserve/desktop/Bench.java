package dev.pocketserve.desktop;

import dev.pocketserve.bridge.InferResult;
import dev.pocketserve.bridge.PocketServe;
import dev.pocketserve.bridge.PocketServeException;
import dev.pocketserve.bridge.Tensor;
import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

/**
 * Measures round trips of one FP32 tensor over one connection, and prints the samples as JSON:
 * {@code {"transport", "model", "bytes_in", "bytes_out", "samples_ns"}}. {@code benchmarks/} compares them.
 */
public final class Bench {
    private static final String USAGE = "usage: Bench --model MODEL [--input NAME] [--shape 1,112,112,3] [--port PORT] "
            + "[--token-file FILE] [--transport socket|http] [--warmup N] [--requests N]";

    private Bench() {
    }

    /**
     * Runs it.
     *
     * @param arguments see the usage; input and shape default to those that the server reports
     */
    public static void main(String[] arguments) {
        int code = 0;
        try {
            System.out.println(run(Arguments.parse(
                    arguments, "model", "input", "shape", "port", "token-file", "transport", "warmup", "requests")));
        } catch (Arguments.UsageException error) {
            System.err.println(Printable.of(error.getMessage()));
            System.err.println(USAGE);
            code = 2;
        } catch (PocketServeException | JSONException error) {
            System.err.println(Printable.of(error));
            code = 1;
        }
        System.exit(code);
    }

    private static JSONObject run(Arguments arguments)
            throws Arguments.UsageException, PocketServeException, JSONException {
        String model = arguments.text("model", null);
        if (model == null) {
            throw new Arguments.UsageException("--model is needed");
        }
        try (PocketServe server = arguments.client()) {
            JSONObject input = server.modelMetadata(model).getJSONArray("inputs").getJSONObject(0);
            long[] shape = shape(arguments.text("shape", null), input.getJSONArray("shape"));
            Tensor tensor = tensor(arguments.text("input", input.getString("name")), shape);
            int bytesOut = 0;
            for (int i = arguments.number("warmup", 200); i > 0; i--) {
                bytesOut = bytes(server.infer(model, tensor));
            }
            JSONArray samples = new JSONArray();
            for (int i = arguments.number("requests", 2000); i > 0; i--) {
                long start = System.nanoTime();
                InferResult result = server.infer(model, tensor);
                samples.put(System.nanoTime() - start);
                bytesOut = bytes(result);
            }
            return new JSONObject().put("transport", arguments.transport().toString()).put("model", model)
                    .put("bytes_in", tensor.buffer().remaining()).put("bytes_out", bytesOut)
                    .put("samples_ns", samples);
        }
    }

    private static int bytes(InferResult result) {
        int total = 0;
        for (Tensor tensor : result.getTensors().values()) {
            total += tensor.buffer().remaining();
        }
        return total;
    }

    /** Returns the given shape, or the model's with 1 for free dimensions. */
    private static long[] shape(String text, JSONArray declared) throws Arguments.UsageException, JSONException {
        String[] parts = text == null ? null : text.split(",");
        long[] shape = new long[parts == null ? declared.length() : parts.length];
        for (int i = 0; i < shape.length; i++) {
            try {
                shape[i] = parts == null ? Math.max(1, declared.getLong(i)) : Long.parseLong(parts[i].trim());
            } catch (NumberFormatException error) {
                throw new Arguments.UsageException("--shape must be a list of whole numbers, such as 1,112,112,3");
            }
        }
        return shape;
    }

    private static Tensor tensor(String name, long[] shape) throws Arguments.UsageException {
        long count = 1;
        for (long size : shape) {
            count *= size;
        }
        float[] values = new float[(int) Math.max(0, Math.min(count, 1 << 28))];
        for (int i = 0; i < values.length; i++) {
            values[i] = i % 256 / 255f;
        }
        try {
            return Tensor.of(name, values, shape);
        } catch (IllegalArgumentException error) {
            throw new Arguments.UsageException(error.getMessage());
        }
    }
}
