package dev.pocketserve.sample.pure;

/** The code that {@code pocketserve pair} shows, as typed. */
public final class PairingCode {
    private PairingCode() {
    }

    /**
     * Returns the digits, or null unless there are ten (six on older servers).
     *
     * @param typed with any spaces and dashes
     */
    public static String digits(String typed) {
        String digits = typed.replaceAll("[ -]", "");
        return digits.matches("[0-9]{10}|[0-9]{6}") ? digits : null;
    }
}
