package dev.pocketserve.sample.pure;

/** Maps positions on a picture to the screen. */
public final class Geometry {
    /** The factor from distances on the picture to those on the screen. */
    public final float scale;
    /** The position of the picture's left edge. */
    public final float left;
    /** The position of the picture's upper edge. */
    public final float top;
    private final int width;
    private final boolean mirrored;

    private Geometry(float scale, float left, float top, int width, boolean mirrored) {
        this.scale = scale;
        this.left = left;
        this.top = top;
        this.width = width;
        this.mirrored = mirrored;
    }

    private static Geometry centred(float scale, int width, int height, int viewWidth, int viewHeight) {
        return new Geometry(scale, (viewWidth - width * scale) / 2, (viewHeight - height * scale) / 2, width, false);
    }

    /** Shows the whole picture, with bars if its shape differs. */
    public static Geometry fitted(int width, int height, int viewWidth, int viewHeight) {
        float scale = Math.min((float) viewWidth / width, (float) viewHeight / height);
        return centred(scale, width, height, viewWidth, viewHeight);
    }

    /** Fills the view, and crops the picture on both sides. */
    public static Geometry filling(int width, int height, int viewWidth, int viewHeight) {
        float scale = Math.max((float) viewWidth / width, (float) viewHeight / height);
        return centred(scale, width, height, viewWidth, viewHeight);
    }

    /** Returns a mirrored copy, as for a front camera's preview. */
    public Geometry mirrored() {
        return new Geometry(scale, left, top, width, !mirrored);
    }

    /** Returns the position of a column of the picture on the screen. */
    public float x(double column) {
        return left + (float) (mirrored ? width - column : column) * scale;
    }

    /** Returns the position of a row of the picture on the screen. */
    public float y(double row) {
        return top + (float) row * scale;
    }

    /** Returns the frame of an area on the screen: left, top, right, bottom. */
    public float[] frame(Overlay.Area area) {
        float one = x(area.x);
        float other = x(area.x + area.width);
        return new float[] {Math.min(one, other), y(area.y), Math.max(one, other), y(area.y + area.height)};
    }

    /**
     * Returns the position of a name: above its frame, or inside if there is no space, and within the view.
     *
     * @param frame the result of {@link #frame}
     * @return left and lower edge of the name's background
     */
    public static float[] nameAt(float[] frame, float nameWidth, float nameHeight, int viewWidth) {
        float start = Math.max(0, Math.min(frame[0], viewWidth - nameWidth));
        return new float[] {start, frame[1] >= nameHeight ? frame[1] : Math.max(0, frame[1]) + nameHeight};
    }

    /**
     * Returns the degrees clockwise that turn a camera's picture upright.
     *
     * @param sensor the mounting angle of the sensor in degrees, see SENSOR_ORIENTATION
     * @param display the rotation of the screen's content in degrees: 0, 90, 180 or 270
     * @param front whether the camera faces the user
     */
    public static int upright(int sensor, int display, boolean front) {
        return (front ? sensor + display : sensor - display + 360) % 360;
    }
}
