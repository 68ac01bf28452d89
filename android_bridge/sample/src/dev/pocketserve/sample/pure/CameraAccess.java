package dev.pocketserve.sample.pure;

/** The camera permission as the person left it, and the way on from there. */
public enum CameraAccess {
    /** The camera may be opened. */
    ALLOWED,
    /** Android shows its dialog again. */
    CAN_ASK,
    /** Android answers by itself with no; only the system's settings help. */
    ONLY_SETTINGS;

    /**
     * Returns the permission's state after Android's answer.
     *
     * <p>Android gives no reason for a no. It asks to explain (shouldShowRequestPermissionRationale) after the first
     * no, and no longer after the final one. It does not either when the very first question was only dismissed.
     *
     * @param explainBefore whether Android asked to explain before the question
     * @param explainAfter the same after it
     * @param earlier whether the person had been asked before
     */
    public static CameraAccess after(boolean granted, boolean explainBefore, boolean explainAfter, boolean earlier) {
        if (granted) {
            return ALLOWED;
        }
        return !explainAfter && (explainBefore || earlier) ? ONLY_SETTINGS : CAN_ASK;
    }
}
