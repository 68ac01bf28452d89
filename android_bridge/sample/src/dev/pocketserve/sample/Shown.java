package dev.pocketserve.sample;

import dev.pocketserve.sample.pure.Overlay;
import java.util.ArrayList;
import java.util.List;

/** The state of the first screen, which survives a change of theme, language or size. */
final class Shown {
    /** Two lines for each answer, newest first. */
    final List<String[]> answers = new ArrayList<>();
    /** The picture in place of the preview, or null. */
    Pictures picture;
    /** The drawing over the picture. */
    Overlay overlay = Overlay.EMPTY;
    /** The picture whose answer has not come yet, or null. */
    Pictures waiting;
}
