package dev.pocketserve.bridge;

import java.util.ArrayList;
import java.util.List;
import org.json.JSONArray;
import org.json.JSONObject;

/** An entry of an answer: a class, an object or a value. */
public final class Label {
    private static final int LONGEST_LINE = 200;

    private final String text;
    private final int index;
    private final double score;
    private final Box box;
    private final JSONObject json;

    Label(JSONObject json) {
        this.json = json;
        this.text = json.optString("label", json.optString("name", json.optString("text", "")));
        this.index = json.optInt("index", -1);
        this.score = json.optDouble("score", Double.NaN);
        JSONObject place = json.optJSONObject("box");
        this.box = place == null ? null : new Box(place.optDouble("x"), place.optDouble("y"),
                place.optDouble("width"), place.optDouble("height"));
    }

    /**
     * The label, or the name of a value.
     *
     * @return empty if the model has none
     */
    public String getLabel() {
        return text;
    }

    /**
     * Returns a number of the entry by its name.
     *
     * @param name such as {@code start}
     * @return NaN when the entry has none
     */
    public double getNumber(String name) {
        return json.optDouble(name, Double.NaN);
    }

    /**
     * Returns a list of numbers of the entry by its name.
     *
     * @param name such as {@code embedding}
     * @return empty when the entry has none
     */
    public float[] getNumbers(String name) {
        JSONArray values = json.optJSONArray(name);
        float[] numbers = new float[values == null ? 0 : values.length()];
        for (int i = 0; i < numbers.length; i++) {
            numbers[i] = (float) values.optDouble(i, Double.NaN);
        }
        return numbers;
    }

    /**
     * Returns entries of the entry by their name.
     *
     * @param name such as {@code keypoints}
     * @return empty when the entry has none
     */
    public List<Label> getEntries(String name) {
        JSONArray values = json.optJSONArray(name);
        List<Label> entries = new ArrayList<>();
        for (int i = 0; values != null && i < values.length(); i++) {
            JSONObject entry = values.optJSONObject(i);
            if (entry != null) {
                entries.add(new Label(entry));
            }
        }
        return entries;
    }

    /**
     * The class's number.
     *
     * @return -1 when the entry has none
     */
    public int getIndex() {
        return index;
    }

    /**
     * Returns the score.
     *
     * @return NaN when the entry has none
     */
    public double getScore() {
        return score;
    }

    /**
     * A regression's value.
     *
     * @return NaN when the entry has none
     */
    public double getValue() {
        return json.optDouble("value", Double.NaN);
    }

    /**
     * Returns the position on the picture.
     *
     * @return null if the entry has none
     */
    public Box getBox() {
        return box;
    }

    /** Returns the unchanged entry, for members without a method here.
     *
     * @return never null; do not change it
     */
    public JSONObject getJson() {
        return json;
    }

    @Override
    public String toString() {
        if (score >= 0 && score <= 1) {
            return text + " (" + Math.round(1000 * score) / 10.0 + " %)";
        }
        if (!Double.isNaN(score)) {
            // Not all models return probabilities.
            return text + " (" + score + ")";
        }
        if (json.has("value")) {
            String unit = json.optString("unit", "");
            return (text.isEmpty() ? "" : text + " ") + json.opt("value") + (unit.isEmpty() ? "" : " " + unit);
        }
        String line = text.isEmpty() ? json.toString() : text;
        return line.length() <= LONGEST_LINE ? line : line.substring(0, LONGEST_LINE) + "...";
    }
}
