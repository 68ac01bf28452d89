package dev.pocketserve.bridge;

import java.nio.ByteBuffer;
import java.util.LinkedHashMap;
import java.util.Map;
import org.json.JSONArray;
import org.json.JSONObject;

/** Encodes tensors as an inference request, and decodes its answer. */
final class InferCodec {
    /** The alignment of raw tensors, so that the server can use them without a copy. */
    private static final int ALIGNMENT = 8;

    private InferCodec() {
    }

    static Request encode(String path, InferOptions options, Tensor... inputs) {
        ByteBuffer[] body = new ByteBuffer[inputs.length + 1];
        long raw = 0;
        for (int i = 0; i < inputs.length; i++) {
            body[i + 1] = inputs[i].bytes();
            raw += body[i + 1].remaining();
        }
        StringBuilder json = header(options, inputs);
        byte[] text = json.toString().getBytes(Request.UTF_8);
        if (raw == 0) {
            return Request.postJson(path, json.toString());
        }
        int padded = (text.length + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        byte[] aligned = new byte[padded];
        System.arraycopy(text, 0, aligned, 0, text.length);
        for (int i = text.length; i < padded; i++) {
            aligned[i] = ' ';
        }
        body[0] = ByteBuffer.wrap(aligned);
        return Request.postTensors(path, padded, body);
    }

    private static StringBuilder header(InferOptions options, Tensor... inputs) {
        StringBuilder json = new StringBuilder(256);
        json.append('{');
        if (!options.getId().isEmpty()) {
            json.append("\"id\":").append(JSONObject.quote(options.getId())).append(',');
        }
        json.append("\"parameters\":{\"binary_data_output\":true");
        for (Map.Entry<String, Object> each : options.getParameters().entrySet()) {
            Object value = each.getValue();
            json.append(',').append(JSONObject.quote(each.getKey())).append(':')
                    .append(value instanceof String ? JSONObject.quote((String) value) : value.toString());
        }
        json.append('}');
        if (!options.getOutputs().isEmpty()) {
            String before = ",\"outputs\":[";
            for (String output : options.getOutputs()) {
                json.append(before).append("{\"name\":").append(JSONObject.quote(output))
                        .append(",\"parameters\":{\"binary_data\":true}}");
                before = ",";
            }
            json.append(']');
        }
        json.append(",\"inputs\":[");
        for (int i = 0; i < inputs.length; i++) {
            json.append(i == 0 ? "" : ",");
            input(json, inputs[i]);
        }
        return json.append("]}");
    }

    private static void input(StringBuilder json, Tensor tensor) {
        json.append("{\"name\":").append(JSONObject.quote(tensor.getName())).append(",\"datatype\":\"")
                .append(tensor.getDatatype()).append("\",\"shape\":[");
        String before = "";
        for (long size : tensor.getShape()) {
            json.append(before).append(size);
            before = ",";
        }
        json.append("],\"parameters\":{\"binary_data_size\":").append(tensor.bytes().remaining()).append("}}");
    }

    static InferResult decode(Answer answer) throws PocketServeException {
        JSONObject json = answer.object();
        JSONArray outputs = json.optJSONArray("outputs");
        if (outputs == null) {
            throw Answer.bad("it has no outputs", null);
        }
        ByteBuffer tail = answer.raw();
        Map<String, Tensor> tensors = new LinkedHashMap<>();
        for (int i = 0; i < outputs.length(); i++) {
            JSONObject output = outputs.optJSONObject(i);
            if (output == null) {
                throw Answer.bad("outputs[" + i + "] is not an object", null);
            }
            Tensor tensor = output(output, tail);
            tensors.put(tensor.getName(), tensor);
        }
        if (tail.hasRemaining()) {
            throw Answer.bad(tail.remaining() + " bytes follow the last tensor", null);
        }
        return new InferResult(json, tensors, answer.server);
    }

    private static Tensor output(JSONObject output, ByteBuffer tail) throws PocketServeException {
        String name = output.optString("name", "");
        JSONObject parameters = output.optJSONObject("parameters");
        long size = parameters == null ? -1 : parameters.optLong("binary_data_size", -1);
        if (size < 0 || size > tail.remaining()) {
            throw Answer.bad("output " + name + " has no valid binary_data_size", null);
        }
        ByteBuffer data = tail.slice();
        data.limit((int) size);
        tail.position(tail.position() + (int) size);
        try {
            return Tensor.raw(name, datatype(output), data, shape(output));
        } catch (IllegalArgumentException error) {
            throw Answer.bad("output " + name + ": " + error.getMessage(), error);
        }
    }

    /** Finds a datatype without valueOf, which uses reflection and would break under shrinkers. */
    private static Datatype datatype(JSONObject output) {
        String datatypeName = output.optString("datatype");
        for (Datatype each : Datatype.values()) {
            if (each.name().equals(datatypeName)) {
                return each;
            }
        }
        throw new IllegalArgumentException("there is no datatype " + datatypeName);
    }

    private static long[] shape(JSONObject output) {
        JSONArray sizes = output.optJSONArray("shape");
        if (sizes == null) {
            throw new IllegalArgumentException("it has no shape");
        }
        long[] shape = new long[sizes.length()];
        for (int i = 0; i < shape.length; i++) {
            shape[i] = sizes.optLong(i, -1);
        }
        return shape;
    }
}
