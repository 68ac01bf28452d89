package dev.pocketserve.bridge;

import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** Records every outcome and the thread that reported it. */
class RecordingCallback<T> implements Callback<T>, StreamListener {
    final BlockingQueue<String> events;
    final BlockingQueue<String> threads = new LinkedBlockingQueue<>();

    RecordingCallback() {
        this(new LinkedBlockingQueue<String>());
    }

    RecordingCallback(BlockingQueue<String> events) {
        this.events = events;
    }

    void record(String event) {
        threads.add(Thread.currentThread().getName());
        events.add(event);
    }

    @Override
    public void onResult(T result) {
        record("result");
    }

    @Override
    public void onError(PocketServeException error) {
        record(error.getCode());
    }

    @Override
    public void onResult(long frame, Prediction prediction) {
        record("result " + frame);
    }

    @Override
    public void onDropped(long frame) {
        record("dropped " + frame);
    }

    @Override
    public void onError(long frame, PocketServeException error) {
        record(error.getCode() + " " + frame);
    }

    String next() throws InterruptedException {
        return events.poll(10, TimeUnit.SECONDS);
    }
}
