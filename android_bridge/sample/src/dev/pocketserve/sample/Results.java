package dev.pocketserve.sample;

import android.content.Context;
import android.view.LayoutInflater;
import android.view.View;
import android.view.ViewGroup;
import android.widget.BaseAdapter;
import android.widget.TextView;
import dev.pocketserve.bridge.Label;
import dev.pocketserve.bridge.Prediction;
import java.util.List;

/** The list of answers, newest first. */
final class Results extends BaseAdapter {
    private static final int KEPT = 50;
    private static final int LABELS_SHOWN = 5;

    private final Context context;
    private final List<String[]> lines;

    Results(Context context, List<String[]> lines) {
        this.context = context;
        this.lines = lines;
    }

    void add(Prediction answer, long tookMs) {
        StringBuilder all = new StringBuilder();
        List<Label> labels = answer.getLabels();
        for (int i = 0; i < Math.min(LABELS_SHOWN, labels.size()); i++) {
            all.append(i == 0 ? "" : ", ").append(labels.get(i));
        }
        String first = context.getString(R.string.result_line, answer.getModel(), answer.summary());
        String second = context.getString(R.string.result_detail, answer.getVersion(), all, tookMs);
        lines.add(0, new String[] {first, second});
        if (lines.size() > KEPT) {
            lines.remove(KEPT);
        }
        notifyDataSetChanged();
    }

    @Override
    public int getCount() {
        return lines.size();
    }

    @Override
    public String[] getItem(int position) {
        return lines.get(position);
    }

    @Override
    public long getItemId(int position) {
        return position;
    }

    @Override
    public View getView(int position, View old, ViewGroup parent) {
        View row = old != null ? old
                : LayoutInflater.from(context).inflate(android.R.layout.simple_list_item_2, parent, false);
        ((TextView) row.findViewById(android.R.id.text1)).setText(lines.get(position)[0]);
        ((TextView) row.findViewById(android.R.id.text2)).setText(lines.get(position)[1]);
        return row;
    }
}
