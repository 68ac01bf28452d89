package dev.pocketserve.bridge;

import java.io.Closeable;
import java.util.HashSet;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.Executor;

/**
 * Sends camera frames to a model, always the newest one.
 *
 * <p>{@link #offer} never blocks. While the maximum number of frames is in progress, only the newest other frame waits,
 * and replaces an earlier one. The server also replaces waiting frames, because of the {@code stream} parameter.
 *
 * <p>The stream has its own threads, which end with {@link #close} or with the client. It keeps at most one waiting
 * frame.
 */
public final class FrameStream implements Closeable {
    private static final int MAX_IN_FLIGHT = 16;

    private final Calls calls;
    private final String model;
    private final StreamListener listener;
    private final Executor executor;
    private final String name;
    private final Streams open;
    private final Set<Cancellation> underWay = new HashSet<>();
    private Frame waiting;
    private long lastNumber;
    private boolean closed;
    /** Whether the client was closed; the camera's thread may still offer frames then. */
    private boolean clientClosed;

    /** A frame in progress. */
    private static final class Frame {
        private final long number;
        private final Calls.PreparedCall<Prediction> call;

        Frame(long number, Calls.PreparedCall<Prediction> call) {
            this.number = number;
            this.call = call;
        }
    }

    FrameStream(Calls calls, String model, int inFlight, StreamListener listener, Executor executor, Streams open) {
        if (listener == null) {
            throw new IllegalArgumentException("a stream needs a listener");
        }
        if (inFlight < 1 || inFlight > MAX_IN_FLIGHT) {
            throw new IllegalArgumentException("inFlight must be between 1 and " + MAX_IN_FLIGHT + ", not " + inFlight);
        }
        Calls.encoded(model); // rejects invalid names before the first frame
        this.calls = calls;
        this.model = model;
        this.listener = listener;
        this.executor = executor;
        this.name = UUID.randomUUID().toString();
        this.open = open;
        open.add(this);
        for (int i = 0; i < inFlight; i++) {
            Thread thread = new Thread(new Runnable() {
                @Override
                public void run() {
                    work();
                }
            }, "pocketserve-stream");
            thread.setDaemon(true);
            thread.start();
        }
    }

    /**
     * Offers an encoded picture.
     *
     * @param picture such as a JPEG; must not change until the listener receives the outcome
     * @return the frame's number, from 1
     * @throws IllegalStateException if this stream was closed; close the camera first
     */
    public long offer(byte[] picture) {
        return offer(picture, "application/octet-stream", null);
    }

    /**
     * Offers a frame of any kind.
     *
     * @param bytes must not change until the listener receives the outcome
     * @param contentType their media type
     * @param options such as width, height, rotation and format of a raw frame; null for none
     * @return the frame's number, from 1
     * @throws IllegalStateException if this stream was closed; close the camera first
     */
    public long offer(byte[] bytes, String contentType, PredictOptions options) {
        PredictOptions own = (options == null ? new PredictOptions() : new PredictOptions(options)).stream(name);
        Calls.PreparedCall<Prediction> call = calls.predict(model, bytes, contentType, own);
        Frame replaced;
        long number;
        boolean rejected;
        synchronized (this) {
            if (closed) {
                throw new IllegalStateException("this stream was closed");
            }
            number = ++lastNumber;
            rejected = clientClosed;
            replaced = waiting;
            waiting = rejected ? null : new Frame(number, call);
            notify();
        }
        if (replaced != null) {
            deliverDropped(replaced.number);
        }
        if (rejected) {
            deliverError(number, Faults.closed());
        }
        return number;
    }

    private void work() {
        while (true) {
            Cancellation cancellation = new Cancellation();
            Thread.interrupted(); // an interrupt left by a listener must not affect the next frame
            Frame frame = next(cancellation);
            if (frame == null) {
                return;
            }
            try {
                deliverResult(frame.number, frame.call.run(cancellation));
            } catch (PocketServeException error) {
                if ("SUPERSEDED".equals(error.getCode())) {
                    deliverDropped(frame.number);
                } else {
                    deliverError(frame.number, error);
                }
            } finally {
                synchronized (this) {
                    underWay.remove(cancellation);
                }
            }
        }
    }

    private synchronized Frame next(Cancellation cancellation) {
        while (waiting == null && !closed && !clientClosed) {
            try {
                wait();
            } catch (InterruptedException notOurs) {
                continue; // only a listener can have interrupted this thread
            }
        }
        if (closed || clientClosed) {
            return null;
        }
        Frame frame = waiting;
        waiting = null;
        underWay.add(cancellation);
        return frame;
    }

    private void deliverResult(final long number, final Prediction prediction) {
        AsyncCalls.execute(executor, new Runnable() {
            @Override
            public void run() {
                listener.onResult(number, prediction);
            }
        });
    }

    private void deliverDropped(final long number) {
        AsyncCalls.execute(executor, new Runnable() {
            @Override
            public void run() {
                listener.onDropped(number);
            }
        });
    }

    private void deliverError(final long number, final PocketServeException error) {
        AsyncCalls.execute(executor, new Runnable() {
            @Override
            public void run() {
                listener.onError(number, error);
            }
        });
    }

    /** Ends the threads of a closed client. Waiting and later frames fail with CLOSED. */
    void end() {
        Frame unsent;
        synchronized (this) {
            clientClosed = true;
            unsent = waiting;
            waiting = null;
            notifyAll();
        }
        if (unsent != null) {
            deliverError(unsent.number, Faults.closed());
        }
    }

    /** Ends the stream. A waiting frame counts as dropped; those in progress are cancelled. Never blocks. */
    @Override
    public void close() {
        open.remove(this);
        Frame unsent;
        Cancellation[] running;
        synchronized (this) {
            closed = true;
            unsent = waiting;
            waiting = null;
            running = underWay.toArray(new Cancellation[0]);
            notifyAll();
        }
        for (Cancellation each : running) {
            each.cancel();
        }
        if (unsent != null) {
            deliverDropped(unsent.number);
        }
    }
}
