package dev.pocketserve.sample;

import android.content.Context;
import android.graphics.Canvas;
import android.graphics.Paint;
import android.util.AttributeSet;
import android.view.View;
import dev.pocketserve.bridge.Box;
import dev.pocketserve.bridge.Label;
import java.util.Collections;
import java.util.List;

/** Draws the boxes of an answer over the picture or preview below. */
public final class BoxView extends View {
    private final Paint frame = new Paint(Paint.ANTI_ALIAS_FLAG);
    private final Paint text = new Paint(Paint.ANTI_ALIAS_FLAG);
    private final Paint shade = new Paint();
    private List<Label> labels = Collections.emptyList();
    private int width;
    private int height;
    private boolean filling;

    /** As the layout inflates it. */
    public BoxView(Context context, AttributeSet attributes) {
        super(context, attributes);
        float density = getResources().getDisplayMetrics().density;
        frame.setStyle(Paint.Style.STROKE);
        frame.setStrokeWidth(3 * density);
        frame.setColor(0xffffb27a);
        text.setColor(0xffffffff);
        text.setTextSize(14 * getResources().getDisplayMetrics().scaledDensity);
        shade.setColor(0xcc000000);
    }

    /**
     * Shows the boxes of these labels.
     *
     * @param width of the upright picture that the boxes are about, in pixels
     * @param filling whether the picture fills the view (the preview) or lies in it as a whole
     */
    void show(List<Label> labels, int width, int height, boolean filling) {
        this.labels = labels;
        this.width = width;
        this.height = height;
        this.filling = filling;
        invalidate();
    }

    void clear() {
        labels = Collections.emptyList();
        invalidate();
    }

    @Override
    protected void onDraw(Canvas canvas) {
        if (labels.isEmpty() || width <= 0 || height <= 0) {
            return;
        }
        Geometry geometry = filling ? Geometry.filling(width, height, getWidth(), getHeight())
                : Geometry.fitted(width, height, getWidth(), getHeight());
        for (Label label : labels) {
            Box box = label.getBox();
            if (box != null) {
                draw(canvas, geometry, box, label.toString());
            }
        }
    }

    private void draw(Canvas canvas, Geometry geometry, Box box, String name) {
        float left = geometry.left + (float) box.getX() * geometry.scale;
        float top = geometry.top + (float) box.getY() * geometry.scale;
        canvas.drawRect(left, top, left + (float) box.getWidth() * geometry.scale,
                top + (float) box.getHeight() * geometry.scale, frame);
        float line = text.getTextSize() * 1.3f;
        float up = Math.max(line, top);
        float wide = text.measureText(name) + line / 2;
        float start = Math.max(0, Math.min(left, getWidth() - wide)); // within the view, also for a box at its edge
        canvas.drawRect(start, up - line, start + wide, up, shade);
        canvas.drawText(name, start + line / 4, up - line / 4, text);
    }
}
