package dev.pocketserve.sample.pure;

/** Distances from the four sides of a view or window, in pixels. */
public final class Edges {
    public final int left;
    public final int top;
    public final int right;
    public final int bottom;

    /** Takes the four distances. */
    public Edges(int left, int top, int right, int bottom) {
        this.left = left;
        this.top = top;
        this.right = right;
        this.bottom = bottom;
    }

    /** Returns the sum of both distances for each side. */
    public Edges plus(Edges other) {
        return new Edges(left + other.left, top + other.top, right + other.right, bottom + other.bottom);
    }

    /** Returns the insets of the top bar, which reaches behind the status bar. */
    public Edges ofBar() {
        return new Edges(left, top, right, 0);
    }

    /** Returns the insets of the contents below that bar. */
    public Edges belowBar() {
        return new Edges(left, 0, right, bottom);
    }
}
