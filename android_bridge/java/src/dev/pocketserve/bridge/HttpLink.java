package dev.pocketserve.bridge;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.HttpRetryException;
import java.net.HttpURLConnection;
import java.net.Proxy;
import java.net.SocketTimeoutException;
import java.net.URL;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.Set;

/** Sends requests with the platform's HTTP client, which keeps connections alive. */
final class HttpLink implements Link {
    private static final String JSON_LENGTH = "Inference-Header-Content-Length";
    private static final int CHUNK_BYTES = 65_536;
    /** The buffer of a longer body doubles in steps, because the announced length is untrusted. */
    private static final int FIRST_BODY_BYTES = 1 << 20;
    /** Android can close a socket while its body is being read; the JDK waits for the reader. */
    private static final boolean CLOSES_AT_ONCE = "Dalvik".equals(System.getProperty("java.vm.name"));

    private final Settings settings;
    private final TimeLimit timeLimit = new TimeLimit();
    private final Set<TimeLimit.Limit> underWay = Collections.synchronizedSet(new HashSet<TimeLimit.Limit>());
    private volatile boolean closed;

    HttpLink(Settings settings) {
        this.settings = settings;
    }

    @Override
    public Answer exchange(Request request, Deadline deadline, Cancellation cancellation)
            throws PocketServeException {
        for (int attempt = 0;; attempt++) {
            if (closed) {
                throw Faults.closed();
            }
            try {
                return once(request, deadline, cancellation);
            } catch (ConnectionBrokenException failure) {
                if (closed) {
                    throw Faults.closed();
                }
                // Usually the server has closed a connection that was kept alive.
                if (!request.isIdempotent() || attempt >= settings.retries || deadline.isOver()) {
                    throw failure.fault();
                }
            }
        }
    }

    private Answer once(Request request, Deadline deadline, Cancellation cancellation)
            throws PocketServeException, ConnectionBrokenException {
        final HttpURLConnection connection = open(request, deadline);
        final TimeLimit.Limit limit = timeLimit.disconnect(connection, deadline);
        underWay.add(limit);
        cancellation.onCancel(new Runnable() {
            @Override
            public void run() {
                limit.giveUpRepeatedly();
            }
        });
        try {
            connect(connection);
            if (closed || cancellation.isCancelled()) { // possibly before there was a connection
                throw new IOException("given up");
            }
            return converse(connection, request, deadline, limit);
        } catch (PocketServeException error) {
            limit.abandon();
            if (closed) {
                throw Faults.closed();
            }
            throw cancellation.isCancelled() ? Cancellation.cancelled(error) : error;
        } catch (IOException | RuntimeException error) {
            // The platform's client throws many kinds of exceptions if the answer is not HTTP.
            limit.abandon();
            if (cancellation.isCancelled()) {
                throw Cancellation.cancelled(error);
            }
            if (closed) {
                throw Faults.closed();
            }
            if (deadline.isOver() || error instanceof SocketTimeoutException) {
                throw deadline.exceeded();
            }
            throw new ConnectionBrokenException(
                    Faults.connectionLost(String.valueOf(error.getMessage()), error), false);
        } catch (OutOfMemoryError error) {
            limit.abandon();
            throw Answer.tooMuch(error);
        } catch (StackOverflowError error) {
            // The JDK's client recurses for each "100 Continue".
            limit.abandon();
            throw Answer.bad("too many interim answers came before it", null);
        } finally {
            limit.end();
            cancellation.onCancel(null);
            underWay.remove(limit);
        }
    }

    private HttpURLConnection open(Request request, Deadline deadline) throws PocketServeException {
        if (deadline.isOver()) {
            throw deadline.exceeded();
        }
        try {
            URL url = new URL("http", settings.host, settings.httpPort, request.path);
            HttpURLConnection connection = (HttpURLConnection) url.openConnection(Proxy.NO_PROXY);
            connection.setRequestMethod(request.method);
            connection.setInstanceFollowRedirects(false);
            connection.setUseCaches(false);
            connection.setConnectTimeout(deadline.within(settings.connectTimeoutMs).socketTimeoutMs());
            connection.setReadTimeout(deadline.socketTimeoutMs());
            // Without this header, Android requests gzip, which on loopback costs more than it saves.
            connection.setRequestProperty("Accept-Encoding", "identity");
            // The platform's default reveals the phone's model.
            connection.setRequestProperty("User-Agent", Settings.NAME);
            if (settings.token != null && request.needsToken()) {
                connection.setRequestProperty("Authorization", "Bearer " + settings.token);
            }
            if (!request.method.equals("GET")) {
                connection.setDoOutput(true);
                connection.setFixedLengthStreamingMode(request.bodyLength);
                connection.setRequestProperty("Content-Type", request.contentType);
            }
            if (request.isMixed()) {
                connection.setRequestProperty(JSON_LENGTH, Integer.toString(request.jsonLength));
            }
            return connection;
        } catch (IOException error) {
            throw Faults.connecting(settings.host, settings.httpPort, error);
        }
    }

    private void connect(HttpURLConnection connection) throws PocketServeException {
        try {
            connection.connect();
        } catch (SocketTimeoutException error) {
            throw Faults.silent(settings.host, settings.httpPort, error);
        } catch (IOException | SecurityException error) {
            throw Faults.connecting(settings.host, settings.httpPort, error);
        }
    }

    private Answer converse(
            HttpURLConnection connection, Request request, Deadline deadline, TimeLimit.Limit limit)
            throws IOException {
        IOException writing = null;
        if (connection.getDoOutput()) {
            writing = write(connection, request);
        }
        int status;
        try {
            status = connection.getResponseCode();
        } catch (HttpRetryException retry) {
            // The JDK hides the body of a 401 to a streamed request; its status is all that matters.
            return new Answer(retry.responseCode(), null, 0, new byte[0], -1);
        } catch (SocketTimeoutException error) {
            throw error;
        } catch (IOException error) {
            throw writing != null ? writing : error;
        }
        if (status < 0) {
            throw new IOException("the answer is not HTTP");
        }
        int announced = connection.getContentLength();
        if (!CLOSES_AT_ONCE && (announced >= 0 || connection.getHeaderField("Transfer-Encoding") != null)) {
            limit.startReading();
        }
        if (limit.isGivenUp()) {
            throw new IOException("given up");
        }
        InputStream in = status >= 400 ? connection.getErrorStream() : connection.getInputStream();
        if (status == 200 && request.receiver() != null) {
            stream(in, request.receiver(), deadline, limit);
            return answer(connection, status, new byte[0]);
        }
        byte[] body = in == null ? new byte[0] : read(in, announced, deadline, limit);
        return answer(connection, status, body);
    }

    /** Sends the body. If the server rejects it early, its answer is a better error than the failed write. */
    private static IOException write(HttpURLConnection connection, Request request) throws SocketTimeoutException {
        try {
            OutputStream out = connection.getOutputStream();
            try {
                for (ByteBuffer piece : request.body()) {
                    FrameWriter.write(out, piece, null);
                }
            } finally {
                out.close();
            }
            return null;
        } catch (SocketTimeoutException error) {
            throw error;
        } catch (IOException error) {
            return error;
        }
    }

    /** Reads a body and closes it; {@link TimeLimit.Limit#abandon()} handles one that ends early. */
    private byte[] read(InputStream in, int announced, Deadline deadline, TimeLimit.Limit limit) throws IOException {
        if (announced > settings.maxAnswerBytes) {
            throw tooLarge();
        }
        byte[] body = announced >= 0
                ? readExactly(in, announced, deadline, limit)
                : readToEnd(in, deadline, limit);
        in.close();
        return body;
    }

    /** Passes on a body while it arrives. */
    private static void stream(InputStream in, PartReceiver receiver, Deadline deadline, TimeLimit.Limit limit)
            throws IOException {
        byte[] chunk = new byte[CHUNK_BYTES];
        for (int count = in.read(chunk); count >= 0; count = in.read(chunk)) {
            receiver.part(chunk, count);
            check(deadline, limit);
        }
        in.close();
    }

    private byte[] readToEnd(InputStream in, Deadline deadline, TimeLimit.Limit limit) throws IOException {
        ByteArrayOutputStream all = new ByteArrayOutputStream();
        byte[] chunk = new byte[CHUNK_BYTES];
        for (int count = in.read(chunk); count >= 0; count = in.read(chunk)) {
            all.write(chunk, 0, count);
            if (all.size() > settings.maxAnswerBytes) {
                throw tooLarge();
            }
            check(deadline, limit);
        }
        return all.toByteArray();
    }

    private static byte[] readExactly(InputStream in, int length, Deadline deadline, TimeLimit.Limit limit)
            throws IOException {
        byte[] body = new byte[Math.min(length, FIRST_BODY_BYTES)];
        int filled = 0;
        while (filled < length) {
            if (filled == body.length) {
                body = Arrays.copyOf(body, (int) Math.min(length, 2L * body.length));
            }
            int count = in.read(body, filled, body.length - filled);
            if (count < 0) {
                throw new IOException("the answer ended after " + filled + " of " + length + " bytes");
            }
            filled += count;
            check(deadline, limit);
        }
        // Reading the end as well lets the platform keep the connection.
        if (in.read() >= 0) {
            throw new IOException("the answer is longer than its Content-Length");
        }
        return body;
    }

    private static void check(Deadline deadline, TimeLimit.Limit limit) throws IOException {
        if (deadline.isOver()) {
            throw deadline.exceeded();
        }
        if (limit.isGivenUp()) {
            throw new IOException("given up");
        }
    }

    private PocketServeException tooLarge() {
        return Answer.bad("it has more than " + settings.maxAnswerBytes + " bytes (maxAnswerBytes)", null);
    }

    private static Answer answer(HttpURLConnection connection, int status, byte[] body) throws PocketServeException {
        String type = connection.getContentType();
        String length = connection.getHeaderField(JSON_LENGTH);
        int jsonLength = body.length;
        if (length != null) {
            try {
                jsonLength = Integer.parseInt(length.trim());
            } catch (NumberFormatException error) {
                throw Answer.bad(JSON_LENGTH + " is not a number", error);
            }
            if (jsonLength < 0 || jsonLength > body.length) {
                throw Answer.bad(JSON_LENGTH + " does not fit the body", null);
            }
        } else if (type == null || !type.startsWith("application/json")) {
            jsonLength = 0;
        }
        return new Answer(status, type, jsonLength, body, retryAfterMs(connection));
    }

    private static long retryAfterMs(HttpURLConnection connection) {
        String seconds = connection.getHeaderField("Retry-After");
        try {
            return seconds == null ? -1 : 1000L * Integer.parseInt(seconds.trim());
        } catch (NumberFormatException aDate) {
            return -1;
        }
    }

    @Override
    public void close() {
        closed = true;
        TimeLimit.Limit[] all;
        synchronized (underWay) {
            all = underWay.toArray(new TimeLimit.Limit[0]);
        }
        for (TimeLimit.Limit limit : all) {
            limit.giveUp();
        }
        timeLimit.close();
    }
}
