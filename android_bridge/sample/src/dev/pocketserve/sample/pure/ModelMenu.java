package dev.pocketserve.sample.pure;

import dev.pocketserve.bridge.ModelState;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;

/** The models and versions to choose from: ready ones that may take pictures. */
public final class ModelMenu {
    /** Tasks that take no picture. All others are listed, including unknown ones. */
    private static final Set<String> WITHOUT_PICTURES = new HashSet<>(Arrays.asList(
            "tensors", "recommendation", "question-answering", "voice-activity"));
    private static final String[] FAMILIES_WITHOUT_PICTURES = {"tabular-", "text-", "audio-"};

    private final Map<String, List<String>> versions = new TreeMap<>();

    /** A version as the server lists it. */
    public static final class Row {
        final String model;
        final String version;
        final boolean ready;
        final boolean standard;
        final String task;

        /** Creates a row of the server's index.
         *
         * @param version empty if the model has none
         * @param standard whether this is the default version
         * @param task empty until it is known
         */
        public Row(String model, String version, boolean ready, boolean standard, String task) {
            this.model = model;
            this.version = version;
            this.ready = ready;
            this.standard = standard;
            this.task = task;
        }
    }

    /** Builds the menu from these rows. */
    public ModelMenu(List<Row> rows) {
        for (Row row : rows) {
            if (row.ready && takesPictures(row.task)) {
                add(row);
            }
        }
    }

    /** Builds the menu from the server's index. */
    public static ModelMenu of(List<ModelState> states) {
        List<Row> rows = new ArrayList<>();
        for (ModelState state : states) {
            rows.add(new Row(state.getName(), state.getVersion(), state.getState().equals("READY"),
                    state.isDefault(), state.getTask()));
        }
        return new ModelMenu(rows);
    }

    private void add(Row row) {
        List<String> known = versions.get(row.model);
        if (known == null) {
            known = new ArrayList<>();
            versions.put(row.model, known);
        }
        known.add(row.standard ? 0 : known.size(), row.version);
    }

    private static boolean takesPictures(String task) {
        for (String family : FAMILIES_WITHOUT_PICTURES) {
            if (task.startsWith(family)) {
                return false;
            }
        }
        return !WITHOUT_PICTURES.contains(task);
    }

    /** Returns the models' names in order. */
    public List<String> models() {
        return new ArrayList<>(versions.keySet());
    }

    /** Returns the ready versions of a model, the default one first; none if the model is not listed. */
    public List<String> versions(String model) {
        List<String> known = versions.get(model);
        return known == null ? Collections.<String>emptyList() : Collections.unmodifiableList(known);
    }

    /** Returns the model to select: the previous choice if listed, else the first; or null. */
    public String modelLike(String before) {
        return versions.containsKey(before == null ? "" : before) ? before
                : versions.isEmpty() ? null : versions.keySet().iterator().next();
    }

    /** Returns the version for requests: the previous choice if ready, else null for the default. */
    public String versionLike(String model, String before) {
        return before != null && versions(model).contains(before) ? before : null;
    }
}
