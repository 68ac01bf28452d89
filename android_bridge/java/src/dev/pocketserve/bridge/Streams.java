package dev.pocketserve.bridge;

import java.util.HashSet;
import java.util.Set;

/** The open streams of a client, which end when it is closed. */
final class Streams {
    private final Set<FrameStream> open = new HashSet<>();
    private boolean closed;

    synchronized void add(FrameStream stream) {
        if (closed) {
            throw new IllegalStateException("this client was closed");
        }
        open.add(stream);
    }

    synchronized void remove(FrameStream stream) {
        open.remove(stream);
    }

    void close() {
        FrameStream[] all;
        synchronized (this) {
            closed = true;
            all = open.toArray(new FrameStream[0]);
            open.clear();
        }
        for (FrameStream each : all) {
            each.end();
        }
    }
}
