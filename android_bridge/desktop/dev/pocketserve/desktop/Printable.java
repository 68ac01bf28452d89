package dev.pocketserve.desktop;

/** Escapes text for the terminal, because names, labels and reasons come from untrusted files and servers. */
final class Printable {
    private Printable() {
    }

    /**
     * Returns the text in one line, with control, reordering and invisible characters escaped.
     *
     * @param value any object, such as an error
     */
    static String of(Object value) {
        StringBuilder plain = new StringBuilder();
        String text = String.valueOf(value);
        for (int i = 0; i < text.length(); i += Character.charCount(text.codePointAt(i))) {
            int letter = text.codePointAt(i);
            switch (Character.getType(letter)) {
                case Character.CONTROL:
                case Character.FORMAT:
                case Character.SURROGATE:
                case Character.LINE_SEPARATOR:
                case Character.PARAGRAPH_SEPARATOR:
                    plain.append(String.format("\\u%04x", letter));
                    break;
                default:
                    plain.appendCodePoint(letter);
            }
        }
        return plain.toString();
    }
}
