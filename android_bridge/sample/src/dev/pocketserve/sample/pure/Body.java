package dev.pocketserve.sample.pure;

import java.util.Arrays;
import org.json.JSONArray;
import org.json.JSONObject;

/** The points of a body on a picture, and the lines that connect them. */
public final class Body {
    /** Less likely points are not drawn, as in the server's own drawings. */
    private static final double LEAST_SCORE = 0.3;
    /** Pairs of COCO's 17 points; the answer names no pairs, so other sets of points get no lines. */
    private static final int[][] COCO = {
        {0, 1}, {0, 2}, {1, 3}, {2, 4}, {5, 6}, {5, 7}, {7, 9}, {6, 8}, {8, 10}, {5, 11}, {6, 12}, {11, 12},
        {11, 13}, {13, 15}, {12, 14}, {14, 16}};
    private static final int COCO_POINTS = 17;

    /** The body's index in the answer, which determines its colour. */
    public final int index;
    private final double[] x;
    private final double[] y;
    private final boolean[] visible;

    Body(JSONArray points, int index) {
        this.index = index;
        int count = points.length();
        x = new double[count];
        y = new double[count];
        visible = new boolean[count];
        for (int i = 0; i < count; i++) {
            JSONObject point = points.optJSONObject(i);
            if (point != null) {
                x[i] = point.optDouble("x");
                y[i] = point.optDouble("y");
                visible[i] = Overlay.finite(x[i]) && Overlay.finite(y[i])
                        && !(point.optDouble("score", 1) < LEAST_SCORE);
            }
        }
    }

    /** Returns the visible points in the view's pixels: x, y, x, y and so on. */
    public float[] points(Geometry geometry) {
        int count = 0;
        float[] places = new float[2 * x.length];
        for (int i = 0; i < x.length; i++) {
            if (visible[i]) {
                places[count++] = geometry.x(x[i]);
                places[count++] = geometry.y(y[i]);
            }
        }
        return Arrays.copyOf(places, count);
    }

    /** Returns the lines between visible points in the view's pixels: four numbers each, from x, y to x, y. */
    public float[] lines(Geometry geometry) {
        if (x.length != COCO_POINTS) {
            return new float[0];
        }
        int count = 0;
        float[] ends = new float[4 * COCO.length];
        for (int[] bone : COCO) {
            if (visible[bone[0]] && visible[bone[1]]) {
                for (int end : bone) {
                    ends[count++] = geometry.x(x[end]);
                    ends[count++] = geometry.y(y[end]);
                }
            }
        }
        return Arrays.copyOf(ends, count);
    }
}
