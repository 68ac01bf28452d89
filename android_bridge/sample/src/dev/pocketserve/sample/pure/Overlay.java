package dev.pocketserve.sample.pure;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import org.json.JSONArray;
import org.json.JSONObject;

/**
 * The drawings of an answer: boxes, bodies and a mask, in pixels of the picture. Their number is bounded; NaN is not
 * drawn.
 */
public final class Overlay {
    /** An answer without anything to draw. */
    public static final Overlay EMPTY = new Overlay();
    /** The maximum number of drawings; more would hide the picture. */
    private static final int MOST = 100;
    private static final int MOST_POINTS = 200;
    private static final int LONGEST_NAME = 60;
    /** Longer masks in base64 are not drawn; 4 million pixels need less. */
    private static final int LONGEST_MASK = 8 << 20;
    private static final String BACKGROUND = "background";

    private final List<Area> boxes = new ArrayList<>();
    private final List<Body> bodies = new ArrayList<>();
    private final List<Integer> background = new ArrayList<>();
    private String mask = "";
    private Area maskArea;

    /** A part of the picture with its class. */
    public static final class Area {
        public final double x;
        public final double y;
        public final double width;
        public final double height;
        public final int index;
        public final String name;

        Area(JSONObject place, int index, String name) {
            this.x = place.optDouble("x");
            this.y = place.optDouble("y");
            this.width = place.optDouble("width");
            this.height = place.optDouble("height");
            this.index = index;
            this.name = name;
        }

        boolean isDrawn() {
            return finite(x) && finite(y) && finite(width) && finite(height) && width >= 0 && height >= 0;
        }
    }

    private Overlay() {
    }

    /** Reads an answer, without parts that can't be read. */
    public static Overlay of(JSONObject answer) {
        Overlay overlay = new Overlay();
        JSONArray entries = answer.optJSONArray("predictions");
        int count = entries == null ? 0 : Math.min(MOST, entries.length());
        for (int i = 0; i < count; i++) {
            JSONObject entry = entries.optJSONObject(i);
            if (entry != null) {
                overlay.add(entry, i);
            }
        }
        overlay.readMask(answer);
        return overlay;
    }

    private void add(JSONObject entry, int position) {
        JSONArray points = entry.optJSONArray("keypoints");
        if (points != null && points.length() <= MOST_POINTS) {
            bodies.add(new Body(points, position));
            return;
        }
        int index = entry.optInt("index", position);
        JSONObject place = entry.optJSONObject("box");
        if (place != null) {
            Area area = new Area(place, index, nameOf(entry));
            if (area.isDrawn()) {
                boxes.add(area);
            }
        } else if (entry.has("share")) {
            String label = entry.optString("label").toLowerCase(Locale.ROOT);
            if (label.equals(BACKGROUND) || label.equals("0")) {
                background.add(index);
            }
        }
    }

    private void readMask(JSONObject answer) {
        JSONObject place = answer.optJSONObject("mask_box");
        String encoded = answer.optString("mask");
        if (place == null || encoded.isEmpty() || encoded.length() > LONGEST_MASK) {
            return;
        }
        Area area = new Area(place, 0, "");
        if (area.isDrawn()) {
            mask = encoded;
            maskArea = area;
        }
    }

    private static String nameOf(JSONObject entry) {
        String name = entry.optString("label", entry.optString("text"));
        double score = entry.optDouble("score");
        String shown = name.length() > LONGEST_NAME ? name.substring(0, LONGEST_NAME) + "…" : name;
        return score >= 0 && score <= 1 ? shown + " " + Math.round(100 * score) + " %" : shown;
    }

    static boolean finite(double value) {
        return !Double.isNaN(value) && !Double.isInfinite(value);
    }

    /** Returns whether nothing is drawn. */
    public boolean isEmpty() {
        return boxes.isEmpty() && bodies.isEmpty() && maskArea == null;
    }

    /** Returns the boxes, the best first. */
    public List<Area> boxes() {
        return Collections.unmodifiableList(boxes);
    }

    /** Returns the bodies, the best first. */
    public List<Body> bodies() {
        return Collections.unmodifiableList(bodies);
    }

    /** Returns the mask's PNG in base64; empty if there is none. */
    public String mask() {
        return mask;
    }

    /** Returns the part of the picture that the mask covers; null if there is none. */
    public Area maskArea() {
        return maskArea;
    }

    /** Returns the numbers of the classes that are not drawn. */
    public int[] background() {
        int[] numbers = new int[background.size()];
        for (int i = 0; i < numbers.length; i++) {
            numbers[i] = background.get(i);
        }
        return numbers;
    }
}
