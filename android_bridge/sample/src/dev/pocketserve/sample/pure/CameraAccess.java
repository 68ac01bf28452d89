package dev.pocketserve.sample.pure;

/** The state of the camera permission, and what to do next. */
public enum CameraAccess {
    /** The camera may be opened. */
    ALLOWED,
    /** Android shows its dialog again. */
    CAN_ASK,
    /** Android denies it without a dialog; only the system's settings help. */
    ONLY_SETTINGS;

    /**
     * Returns the permission's state after Android's answer.
     *
     * <p>Android gives no reason for a denial. It asks for an explanation (shouldShowRequestPermissionRationale) after
     * the first denial, but not after the final one, nor if the first dialog was only dismissed.
     *
     * @param explainBefore whether Android asked for an explanation before the request
     * @param explainAfter the same after it
     * @param earlier whether the app has requested the permission before
     */
    public static CameraAccess after(boolean granted, boolean explainBefore, boolean explainAfter, boolean earlier) {
        if (granted) {
            return ALLOWED;
        }
        return !explainAfter && (explainBefore || earlier) ? ONLY_SETTINGS : CAN_ASK;
    }
}
