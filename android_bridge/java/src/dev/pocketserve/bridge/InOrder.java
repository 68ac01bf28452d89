package dev.pocketserve.bridge;

import java.util.ArrayDeque;
import java.util.concurrent.Executor;
import java.util.concurrent.RejectedExecutionException;

/**
 * Runs tasks on another executor one after the other, even if that has many threads. Ignores an executor that was shut
 * down.
 */
final class InOrder implements Executor {
    private final Executor executor;
    private final ArrayDeque<Runnable> waiting = new ArrayDeque<>();
    private boolean running;

    InOrder(Executor executor) {
        this.executor = executor;
    }

    @Override
    public void execute(Runnable task) {
        synchronized (waiting) {
            waiting.add(task);
            if (running) {
                return;
            }
            running = true;
        }
        submit();
    }

    private void submit() {
        try {
            executor.execute(new Runnable() {
                @Override
                public void run() {
                    runNext();
                }
            });
        } catch (RejectedExecutionException nobodyListens) {
            synchronized (waiting) {
                running = false;
                waiting.clear();
            }
        }
    }

    private void runNext() {
        Runnable task;
        synchronized (waiting) {
            task = waiting.poll();
        }
        try {
            if (task != null) {
                task.run();
            }
        } finally {
            boolean more;
            synchronized (waiting) {
                more = !waiting.isEmpty();
                running = more;
            }
            if (more) {
                submit();
            }
        }
    }
}
