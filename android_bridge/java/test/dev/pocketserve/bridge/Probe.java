package dev.pocketserve.bridge;

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

/**
 * A client for tests in other languages: each line of standard input is a JSON object with a call, and each line of
 * output its outcome.
 */
public final class Probe {
    private Probe() {
    }

    /**
     * Runs until the input ends.
     *
     * @param arguments transport, port and token file
     */
    public static void main(String[] arguments) throws IOException, JSONException {
        PocketServe.Builder builder = PocketServe.builder().tokenFile(new File(arguments[2])).reconnectMs(20_000);
        boolean socket = arguments[0].equals("socket");
        int port = Integer.parseInt(arguments[1]);
        builder.transport(socket ? Transport.SOCKET : Transport.HTTP);
        try (PocketServe server = (socket ? builder.socketPort(port) : builder.httpPort(port)).build()) {
            BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                System.out.println(answer(server, new JSONObject(line)));
                System.out.flush();
            }
        }
    }

    private static JSONObject answer(PocketServe server, JSONObject call) throws IOException, JSONException {
        try {
            return call.has("file") ? predict(server, call) : infer(server, call);
        } catch (PocketServeException error) {
            return new JSONObject().put("code", error.getCode()).put("status", error.getStatus())
                    .put("retryable", error.isRetryable());
        }
    }

    private static JSONObject predict(PocketServe server, JSONObject call) throws IOException, JSONException {
        PredictOptions options = new PredictOptions();
        if (call.has("top_k")) {
            options.topK(call.getInt("top_k"));
        }
        return server.predict(call.getString("model"), read(call.getString("file")), null, options).getJson();
    }

    private static JSONObject infer(PocketServe server, JSONObject call) throws JSONException, IOException {
        JSONArray values = call.getJSONArray("data");
        float[] data = new float[values.length()];
        for (int i = 0; i < data.length; i++) {
            data[i] = (float) values.getDouble(i);
        }
        JSONArray dims = call.getJSONArray("shape");
        long[] shape = new long[dims.length()];
        for (int i = 0; i < shape.length; i++) {
            shape[i] = dims.getLong(i);
        }
        InferResult result = server.infer(
                call.getString("model"), Tensor.of(call.getString("input"), data, shape));
        JSONObject outputs = new JSONObject();
        for (Tensor tensor : result.getTensors().values()) {
            JSONArray numbers = new JSONArray();
            for (float number : tensor.floats()) {
                numbers.put((double) number);
            }
            outputs.put(tensor.getName(), numbers);
        }
        return new JSONObject().put("outputs", outputs);
    }

    private static byte[] read(String path) throws IOException {
        try (InputStream in = new FileInputStream(path)) {
            ByteArrayOutputStream all = new ByteArrayOutputStream();
            byte[] chunk = new byte[65_536];
            for (int count = in.read(chunk); count >= 0; count = in.read(chunk)) {
                all.write(chunk, 0, count);
            }
            return all.toByteArray();
        }
    }
}
