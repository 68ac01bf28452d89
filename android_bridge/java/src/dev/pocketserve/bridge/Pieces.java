package dev.pocketserve.bridge;

import java.util.concurrent.Executor;
import java.util.concurrent.atomic.AtomicBoolean;

/** Passes pieces of an answer to the listener in order, until the call is cancelled. */
final class Pieces {
    final Executor inOrder;
    private final AtomicBoolean cancelled = new AtomicBoolean();

    Pieces(Executor executor) {
        inOrder = new InOrder(executor);
    }

    void execute(final Runnable piece) {
        AsyncCalls.execute(inOrder, new Runnable() {
            @Override
            public void run() {
                if (!cancelled.get()) {
                    piece.run();
                }
            }
        });
    }

    Call startedAs(final Call started) {
        return new Call() {
            @Override
            public void cancel() {
                cancelled.set(true);
                started.cancel();
            }

            @Override
            public boolean isDone() {
                return started.isDone();
            }
        };
    }
}
