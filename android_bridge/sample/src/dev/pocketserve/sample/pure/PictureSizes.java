package dev.pocketserve.sample.pure;

/** Chooses among a camera's sizes, {width, height} in pixels. */
public final class PictureSizes {
    private PictureSizes() {
    }

    /**
     * Returns the largest size within a limit, or the smallest size if all are larger.
     *
     * @param like preferably of this shape; null for any
     * @throws IllegalArgumentException if there is none
     */
    public static int[] largest(int[][] sizes, int longSide, int[] like) {
        if (sizes.length == 0) {
            throw new IllegalArgumentException("the camera offers no size");
        }
        int[] best = null;
        int[] smallest = sizes[0];
        for (int[] size : sizes) {
            smallest = area(size) < area(smallest) ? size : smallest;
            boolean fits = Math.max(size[0], size[1]) <= longSide && (like == null || sameShape(size, like));
            if (fits && (best == null || area(size) > area(best))) {
                best = size;
            }
        }
        if (best == null && like != null) {
            return largest(sizes, longSide, null);
        }
        return best == null ? smallest : best;
    }

    private static boolean sameShape(int[] one, int[] other) {
        return (long) one[0] * other[1] == (long) one[1] * other[0];
    }

    private static long area(int[] size) {
        return (long) size[0] * size[1];
    }
}
