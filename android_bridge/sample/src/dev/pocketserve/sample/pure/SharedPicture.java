package dev.pocketserve.sample.pure;

/** The rules for shared pictures. Any app can send one, so nothing in it is trusted. */
public final class SharedPicture {
    private SharedPicture() {
    }

    /**
     * Returns whether to open it. File addresses are rejected, because they would be opened with this app's rights,
     * private files included; content addresses are opened with the sender's rights.
     *
     * @param type the sender's MIME type, or null
     * @param scheme of the address; null if there is none
     */
    public static boolean accepted(String type, String scheme) {
        return type != null && type.startsWith("image/") && "content".equals(scheme);
    }
}
