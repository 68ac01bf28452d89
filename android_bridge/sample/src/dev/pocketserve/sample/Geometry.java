package dev.pocketserve.sample;

/** The places of things on a picture on the screen. */
final class Geometry {
    /** The factor from distances on the picture to those on the screen. */
    final float scale;
    /** The place of the picture's left edge. */
    final float left;
    /** The place of the picture's upper edge. */
    final float top;

    private Geometry(float scale, int width, int height, int viewWidth, int viewHeight) {
        this.scale = scale;
        this.left = (viewWidth - width * scale) / 2;
        this.top = (viewHeight - height * scale) / 2;
    }

    /** The whole picture is seen, with bars where its shape differs. */
    static Geometry fitted(int width, int height, int viewWidth, int viewHeight) {
        float scale = Math.min((float) viewWidth / width, (float) viewHeight / height);
        return new Geometry(scale, width, height, viewWidth, viewHeight);
    }

    /** The whole view is filled; what does not fit is cut off on both sides. */
    static Geometry filling(int width, int height, int viewWidth, int viewHeight) {
        float scale = Math.max((float) viewWidth / width, (float) viewHeight / height);
        return new Geometry(scale, width, height, viewWidth, viewHeight);
    }

    /**
     * Returns how far a picture of a back or front camera must be turned clockwise to stand upright.
     *
     * @param sensor degrees by which the sensor is mounted, see SENSOR_ORIENTATION
     * @param display degrees by which the screen's content is turned: 0, 90, 180 or 270
     * @param front whether the camera looks at the person
     */
    static int upright(int sensor, int display, boolean front) {
        return (front ? sensor + display : sensor - display + 360) % 360;
    }
}
