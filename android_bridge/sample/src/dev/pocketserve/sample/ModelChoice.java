package dev.pocketserve.sample;

import android.app.Activity;
import android.view.View;
import android.widget.AdapterView;
import android.widget.ArrayAdapter;
import android.widget.Spinner;
import dev.pocketserve.bridge.ModelState;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;

/** The models that the server has, and the one that the person chose; the settings remember it. */
final class ModelChoice {
    private final AppSettings settings;
    private final List<String> models = new ArrayList<>();
    private final ArrayAdapter<String> adapter;
    private final Spinner spinner;

    /** Hears of a choice. */
    interface Listener {
        /** Another model than before is to be asked. */
        void onModelChosen();
    }

    ModelChoice(Activity activity, AppSettings settings, final Listener listener) {
        this.settings = settings;
        adapter = new ArrayAdapter<>(activity, android.R.layout.simple_spinner_item, models);
        adapter.setDropDownViewResource(android.R.layout.simple_spinner_dropdown_item);
        spinner = (Spinner) activity.findViewById(R.id.models);
        spinner.setAdapter(adapter);
        spinner.setOnItemSelectedListener(new AdapterView.OnItemSelectedListener() {
            @Override
            public void onItemSelected(AdapterView<?> parent, View view, int position, long id) {
                if (!models.get(position).equals(ModelChoice.this.settings.model())) {
                    ModelChoice.this.settings.setModel(models.get(position));
                    listener.onModelChosen();
                }
            }

            @Override
            public void onNothingSelected(AdapterView<?> parent) {
                ModelChoice.this.settings.setModel(null);
            }
        });
    }

    /**
     * Offers what the server has; the model that was chosen before stays chosen where it is among them.
     *
     * @return false when there is none
     */
    boolean offer(List<ModelState> states) {
        Set<String> names = new TreeSet<>();
        for (ModelState each : states) {
            names.add(each.getName());
        }
        String selected = settings.model();
        models.clear();
        models.addAll(names);
        adapter.notifyDataSetChanged();
        int position = Math.max(0, models.indexOf(selected));
        if (!models.isEmpty()) {
            spinner.setSelection(position);
        }
        settings.setModel(models.isEmpty() ? null : models.get(position));
        return !models.isEmpty();
    }
}
