package dev.pocketserve.sample;

import android.app.Activity;
import android.content.Context;
import android.view.View;
import android.widget.AdapterView;
import android.widget.ArrayAdapter;
import android.widget.Spinner;
import dev.pocketserve.bridge.ModelState;
import dev.pocketserve.sample.pure.ModelMenu;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

/** The server's models and versions, and the user's choice, which is stored in the settings. */
final class ModelChoice {
    private final Context context;
    private final AppSettings settings;
    private final Listener listener;
    private final Column models;
    private final Column versions;
    private ModelMenu menu = new ModelMenu(Collections.<ModelMenu.Row>emptyList());

    /** Receives the choice. */
    interface Listener {
        /** The user chose another model or version. */
        void onModelChosen();
    }

    ModelChoice(Activity activity, AppSettings settings, Listener listener) {
        this.context = activity;
        this.settings = settings;
        this.listener = listener;
        models = new Column(activity, R.id.models);
        versions = new Column(activity, R.id.versions);
    }

    /**
     * Lists the server's models. The previous choice stays selected if it is listed.
     *
     * @return false if there is no model for pictures
     */
    boolean offer(List<ModelState> states) {
        menu = ModelMenu.of(states);
        String model = menu.modelLike(settings.model());
        models.fill(menu.models(), Math.max(0, menu.models().indexOf(model)));
        offerVersions(model, menu.versionLike(model, settings.version()));
        return model != null;
    }

    /** The first entry is the server's default version, even if that changes. */
    private void offerVersions(String model, String version) {
        List<String> known = model == null ? Collections.<String>emptyList() : menu.versions(model);
        List<String> entries = new ArrayList<>();
        for (String name : known) {
            if (!name.isEmpty()) {
                entries.add(name);
            }
        }
        if (!known.isEmpty()) {
            entries.add(0, context.getString(R.string.version_default, known.get(0)).trim());
        }
        versions.fill(entries, Math.max(0, entries.indexOf(version)));
        settings.setModel(model, version);
    }

    private void choose() {
        String model = models.selected();
        boolean other = model != null && !model.equals(settings.model());
        int position = versions.spinner.getSelectedItemPosition();
        String version = other || position <= 0 ? null : versions.selected();
        if (other) {
            offerVersions(model, null);
        } else if (model == null || same(version, settings.version())) {
            return; // filling a list also reports a selection
        } else {
            settings.setModel(model, version);
        }
        listener.onModelChosen();
    }

    private static boolean same(String one, String other) {
        return one == null ? other == null : one.equals(other);
    }

    /** One of the two lists. */
    private final class Column implements AdapterView.OnItemSelectedListener {
        private final Spinner spinner;
        private final List<String> entries = new ArrayList<>();
        private final ArrayAdapter<String> adapter;

        Column(Activity activity, int id) {
            adapter = new ArrayAdapter<>(activity, R.layout.item_choice, entries);
            spinner = (Spinner) activity.findViewById(id);
            spinner.setAdapter(adapter);
            spinner.setOnItemSelectedListener(this);
        }

        void fill(List<String> names, int position) {
            entries.clear();
            entries.addAll(names);
            adapter.notifyDataSetChanged();
            spinner.setEnabled(!names.isEmpty());
            if (!names.isEmpty()) {
                spinner.setSelection(position);
            }
        }

        String selected() {
            int position = spinner.getSelectedItemPosition();
            return position >= 0 && position < entries.size() ? entries.get(position) : null;
        }

        @Override
        public void onItemSelected(AdapterView<?> parent, View view, int position, long id) {
            choose();
        }

        @Override
        public void onNothingSelected(AdapterView<?> parent) {
            // The choice stays in the settings while the server lists nothing.
        }
    }
}
