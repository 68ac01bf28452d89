package dev.pocketserve.bridge;

import java.util.Arrays;

/** The shape of a tensor that a model accepts; some dimensions may be free. */
public final class TensorShape {
    private final String name;
    private final long[] sizes;

    /**
     * Describes a shape.
     *
     * @param name of the tensor, for messages
     * @param sizes of the dimensions; -1 for a free one
     */
    public TensorShape(String name, long... sizes) {
        this.name = name;
        this.sizes = sizes.clone();
    }

    /**
     * Returns the sizes of the dimensions.
     *
     * @return a copy; -1 for a free one
     */
    public long[] getSizes() {
        return sizes.clone();
    }

    /**
     * Returns the shape for a number of elements, which determines the free dimension.
     *
     * @param elements how many there are
     * @return the size of each dimension
     * @throws IllegalArgumentException if they do not fill the shape, or several dimensions are free
     */
    public long[] forElements(int elements) {
        long[] filled = sizes.clone();
        long fixed = 1;
        int free = -1;
        for (int i = 0; i < sizes.length; i++) {
            if (sizes[i] >= 0) {
                fixed *= sizes[i];
            } else if (free >= 0) {
                throw new IllegalArgumentException(name + " of shape " + this + " has several free dimensions");
            } else {
                free = i;
            }
        }
        if (free >= 0 && fixed > 0) {
            filled[free] = elements / fixed;
        }
        return check(elements, filled);
    }

    /**
     * Checks the shape of elements.
     *
     * @param elements how many there are
     * @param actual the size of each dimension
     * @return {@code actual}
     * @throws IllegalArgumentException if the elements do not fill it, or the model does not accept it
     */
    public long[] check(int elements, long... actual) {
        if (!accepts(actual) || Tensor.elements(name, actual) != elements) {
            throw new IllegalArgumentException(name + " takes " + this + ", -1 being any size; " + elements
                    + " elements of shape " + Arrays.toString(actual) + " do not fill it");
        }
        return actual;
    }

    boolean accepts(Tensor tensor) {
        return accepts(tensor.getShape());
    }

    private boolean accepts(long[] actual) {
        boolean fits = actual.length == sizes.length;
        for (int i = 0; fits && i < sizes.length; i++) {
            fits = sizes[i] < 0 || sizes[i] == actual[i];
        }
        return fits;
    }

    @Override
    public String toString() {
        return Arrays.toString(sizes);
    }
}
