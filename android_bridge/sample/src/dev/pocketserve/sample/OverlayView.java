package dev.pocketserve.sample;

import android.content.Context;
import android.graphics.Bitmap;
import android.graphics.BitmapFactory;
import android.graphics.Canvas;
import android.graphics.Paint;
import android.graphics.RectF;
import android.util.AttributeSet;
import android.util.Base64;
import android.view.View;
import dev.pocketserve.sample.pure.Body;
import dev.pocketserve.sample.pure.Colours;
import dev.pocketserve.sample.pure.Geometry;
import dev.pocketserve.sample.pure.Overlay;
import java.util.List;

/** Draws the boxes, bodies and mask of an answer over the picture or preview below. */
public final class OverlayView extends View {
    private static final int RIM = 0xff1c1c1c;
    private static final int POINT = 0xffffffff;
    private static final int MOST_MASK_PIXELS = 4 << 20;

    private final Paint line = new Paint(Paint.ANTI_ALIAS_FLAG);
    private final Paint text = new Paint(Paint.ANTI_ALIAS_FLAG);
    private final Paint ground = new Paint(Paint.ANTI_ALIAS_FLAG);
    private final Paint smooth = new Paint(Paint.FILTER_BITMAP_FLAG);
    private final float density;
    private Overlay overlay = Overlay.EMPTY;
    private Bitmap mask;
    private int width;
    private int height;
    private boolean filling;
    private boolean mirrored;

    /** Called when the layout is inflated. */
    public OverlayView(Context context, AttributeSet attributes) {
        super(context, attributes);
        density = getResources().getDisplayMetrics().density;
        line.setStyle(Paint.Style.STROKE);
        line.setStrokeCap(Paint.Cap.ROUND);
        text.setTextSize(14 * getResources().getDisplayMetrics().scaledDensity);
    }

    /**
     * Draws the entries of an answer.
     *
     * @param width of the upright picture, in pixels
     * @param filling whether the picture fills the view, as the preview does, or fits inside
     * @param mirrored whether it is mirrored, as a front camera's preview
     */
    void show(Overlay found, int width, int height, boolean filling, boolean mirrored) {
        this.overlay = found;
        this.width = width;
        this.height = height;
        this.filling = filling;
        this.mirrored = mirrored;
        this.mask = found.maskArea() == null ? null : mask(found);
        invalidate();
    }

    void clear() {
        show(Overlay.EMPTY, 0, 0, false, false);
    }

    /** The classes' colours, half transparent; null if the mask can't be read. */
    private static Bitmap mask(Overlay found) {
        try {
            byte[] encoded = Base64.decode(found.mask(), Base64.DEFAULT);
            BitmapFactory.Options options = new BitmapFactory.Options();
            options.inJustDecodeBounds = true;
            BitmapFactory.decodeByteArray(encoded, 0, encoded.length, options);
            long area = (long) options.outWidth * options.outHeight;
            options.inJustDecodeBounds = false;
            options.inPreferredConfig = Bitmap.Config.ARGB_8888;
            Bitmap decoded = area <= 0 || area > MOST_MASK_PIXELS ? null
                    : BitmapFactory.decodeByteArray(encoded, 0, encoded.length, options);
            return decoded == null ? null : veiled(decoded, found.background());
        } catch (IllegalArgumentException | OutOfMemoryError unreadable) {
            return null;
        }
    }

    private static Bitmap veiled(Bitmap decoded, int[] clear) {
        int wide = decoded.getWidth();
        int high = decoded.getHeight();
        int[] pixels = new int[wide * high];
        decoded.getPixels(pixels, 0, wide, 0, 0, wide, high);
        Colours.veil(pixels, clear);
        return Bitmap.createBitmap(pixels, wide, high, Bitmap.Config.ARGB_8888);
    }

    @Override
    protected void onDraw(Canvas canvas) {
        if (overlay.isEmpty() || width <= 0 || height <= 0) {
            return;
        }
        Geometry geometry = filling ? Geometry.filling(width, height, getWidth(), getHeight())
                : Geometry.fitted(width, height, getWidth(), getHeight());
        geometry = mirrored ? geometry.mirrored() : geometry;
        if (mask != null) {
            drawMask(canvas, geometry.frame(overlay.maskArea()));
        }
        for (Body body : overlay.bodies()) {
            draw(canvas, geometry, body);
        }
        List<Overlay.Area> boxes = overlay.boxes();
        for (int i = boxes.size() - 1; i >= 0; i--) { // the best one on top
            drawFrame(canvas, geometry.frame(boxes.get(i)), boxes.get(i));
        }
        for (int i = boxes.size() - 1; i >= 0; i--) { // so that frames don't cross names
            drawName(canvas, geometry.frame(boxes.get(i)), boxes.get(i));
        }
    }

    private void drawMask(Canvas canvas, float[] frame) {
        canvas.save();
        if (mirrored) {
            canvas.scale(-1, 1, (frame[0] + frame[2]) / 2, 0);
        }
        canvas.drawBitmap(mask, null, new RectF(frame[0], frame[1], frame[2], frame[3]), smooth);
        canvas.restore();
    }

    private void draw(Canvas canvas, Geometry geometry, Body body) {
        float[] bones = body.lines(geometry);
        line.setStrokeWidth(6 * density);
        line.setColor(RIM);
        canvas.drawLines(bones, line);
        line.setStrokeWidth(4 * density);
        line.setColor(Colours.of(body.index));
        canvas.drawLines(bones, line);
        float[] points = body.points(geometry);
        line.setStrokeWidth(9 * density);
        line.setColor(RIM);
        canvas.drawPoints(points, line);
        line.setStrokeWidth(6 * density);
        line.setColor(POINT);
        canvas.drawPoints(points, line);
    }

    private void drawFrame(Canvas canvas, float[] frame, Overlay.Area area) {
        line.setStrokeWidth(5 * density);
        line.setColor(RIM);
        canvas.drawRect(frame[0], frame[1], frame[2], frame[3], line);
        line.setStrokeWidth(3 * density);
        line.setColor(Colours.of(area.index));
        canvas.drawRect(frame[0], frame[1], frame[2], frame[3], line);
    }

    private void drawName(Canvas canvas, float[] frame, Overlay.Area area) {
        int colour = Colours.of(area.index);
        if (area.name.isEmpty()) {
            return;
        }
        float high = text.getTextSize() * 1.3f;
        float wide = text.measureText(area.name) + high / 2;
        float[] place = Geometry.nameAt(frame, wide, high, getWidth());
        ground.setColor(colour);
        text.setColor(Colours.ink(colour));
        canvas.drawRect(place[0], place[1] - high, place[0] + wide, place[1], ground);
        canvas.drawText(area.name, place[0] + high / 4, place[1] - high / 4, text);
    }
}
