package dev.pocketserve.sample;

import dev.pocketserve.sample.pure.Overlay;
import java.util.ArrayList;
import java.util.List;

/** What the first screen shows, handed on when Android makes the screen anew: another theme, language or size. */
final class Shown {
    /** Two lines for each answer, newest first. */
    final List<String[]> answers = new ArrayList<>();
    /** The picture in place of the preview, or null. */
    Pictures picture;
    /** What is drawn on it. */
    Overlay overlay = Overlay.EMPTY;
    /** The picture whose answer has not come yet, or null. */
    Pictures waiting;
}
