package dev.pocketserve.bridge;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

/** A model's answer with entries of a generated type.
 *
 * @param <T> the type of an entry, such as a detection
 */
public final class TypedAnswer<T> {
    private final Prediction prediction;
    private final List<T> entries;

    /**
     * Wraps an answer.
     *
     * @param prediction the whole answer
     * @param entries its entries in their order
     */
    public TypedAnswer(Prediction prediction, List<T> entries) {
        this.prediction = prediction;
        this.entries = Collections.unmodifiableList(new ArrayList<>(entries));
    }

    /**
     * Returns the entries, best first if they are ordered.
     *
     * @return read-only; empty when nothing was found
     */
    public List<T> getEntries() {
        return entries;
    }

    /**
     * Returns the first of {@link #getEntries}.
     *
     * @return null when nothing was found
     */
    public T getBest() {
        return entries.isEmpty() ? null : entries.get(0);
    }

    /**
     * Returns the time that the server took.
     *
     * @return never null
     */
    public Timing getTiming() {
        return prediction.getTiming();
    }

    /**
     * Returns the whole answer, for members without a type: a drawn picture, a mask.
     *
     * @return never null
     */
    public Prediction getPrediction() {
        return prediction;
    }

    @Override
    public String toString() {
        return prediction.getModel() + ": " + entries;
    }
}
