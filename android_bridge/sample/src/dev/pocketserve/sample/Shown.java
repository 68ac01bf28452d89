package dev.pocketserve.sample;

import dev.pocketserve.sample.pure.Overlay;
import java.util.ArrayList;
import java.util.List;

/** The state of the first screen, kept when theme, language or size change. */
final class Shown {
    /** Two lines for each answer, newest first. */
    final List<String[]> answers = new ArrayList<>();
    /** The picture shown instead of the preview, or null. */
    Pictures picture;
    /** The drawing over the picture. */
    Overlay overlay = Overlay.EMPTY;
    /** The picture that is waiting for its answer, or null. */
    Pictures waiting;
}
