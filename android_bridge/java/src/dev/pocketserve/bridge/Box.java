package dev.pocketserve.bridge;

/** The position of an object, in pixels of the picture that was sent. */
public final class Box {
    private final double x;
    private final double y;
    private final double width;
    private final double height;

    Box(double x, double y, double width, double height) {
        this.x = x;
        this.y = y;
        this.width = width;
        this.height = height;
    }

    /**
     * The left edge.
     *
     * @return pixels from the picture's left
     */
    public double getX() {
        return x;
    }

    /**
     * The upper edge.
     *
     * @return pixels from the picture's top
     */
    public double getY() {
        return y;
    }

    /**
     * Returns its width.
     *
     * @return pixels
     */
    public double getWidth() {
        return width;
    }

    /**
     * Returns its height.
     *
     * @return pixels
     */
    public double getHeight() {
        return height;
    }

    @Override
    public String toString() {
        return "(" + x + ", " + y + ", " + width + " x " + height + ")";
    }
}
