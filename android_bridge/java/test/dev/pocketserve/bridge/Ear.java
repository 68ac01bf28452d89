package dev.pocketserve.bridge;

import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** Writes down what it hears, and on which thread. */
class Ear<T> implements Callback<T>, StreamListener {
    final BlockingQueue<String> heard;
    final BlockingQueue<String> threads = new LinkedBlockingQueue<>();

    Ear() {
        this(new LinkedBlockingQueue<String>());
    }

    Ear(BlockingQueue<String> heard) {
        this.heard = heard;
    }

    void hear(String what) {
        threads.add(Thread.currentThread().getName());
        heard.add(what);
    }

    @Override
    public void onResult(T result) {
        hear("result");
    }

    @Override
    public void onError(PocketServeException error) {
        hear(error.getCode());
    }

    @Override
    public void onResult(long frame, Prediction prediction) {
        hear("result " + frame);
    }

    @Override
    public void onDropped(long frame) {
        hear("dropped " + frame);
    }

    @Override
    public void onError(long frame, PocketServeException error) {
        hear(error.getCode() + " " + frame);
    }

    String next() throws InterruptedException {
        return heard.poll(10, TimeUnit.SECONDS);
    }
}
