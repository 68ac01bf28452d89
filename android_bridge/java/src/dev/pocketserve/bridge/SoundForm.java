package dev.pocketserve.bridge;

import java.nio.ByteBuffer;
import java.security.SecureRandom;
import java.util.LinkedHashMap;
import java.util.Map;

/** Builds a multipart form with a sound for OpenAI's interface, without copying the sound. */
final class SoundForm {
    private static final int BOUNDARY_BYTES = 16;

    private SoundForm() {
    }

    static Request request(String model, byte[] sound, TranscribeOptions options) {
        String boundary = boundary();
        Map<String, String> fields = new LinkedHashMap<>(options.fields());
        fields.put("model", model);
        fields.put("stream", "true");
        StringBuilder head = new StringBuilder();
        for (Map.Entry<String, String> field : fields.entrySet()) {
            head.append("--").append(boundary).append("\r\nContent-Disposition: form-data; name=\"")
                    .append(field.getKey()).append("\"\r\n\r\n").append(field.getValue()).append("\r\n");
        }
        head.append("--").append(boundary)
                .append("\r\nContent-Disposition: form-data; name=\"file\"; filename=\"sound\"\r\n")
                .append("Content-Type: application/octet-stream\r\n\r\n");
        String tail = "\r\n--" + boundary + "--\r\n";
        return Request.post(options.path(), "multipart/form-data; boundary=" + boundary,
                ByteBuffer.wrap(head.toString().getBytes(Request.UTF_8)), ByteBuffer.wrap(sound),
                ByteBuffer.wrap(tail.getBytes(Request.UTF_8)));
    }

    /** Returns a random boundary, so that sound and prompt don't contain it. */
    private static String boundary() {
        byte[] random = new byte[BOUNDARY_BYTES];
        new SecureRandom().nextBytes(random);
        StringBuilder text = new StringBuilder();
        for (byte each : random) {
            text.append(Character.forDigit(each >> 4 & 0xf, 16)).append(Character.forDigit(each & 0xf, 16));
        }
        return text.toString();
    }
}
