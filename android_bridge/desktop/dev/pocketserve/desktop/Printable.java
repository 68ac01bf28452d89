package dev.pocketserve.desktop;

/** Text that cannot command a terminal: names, labels and reasons come from files and servers of anybody's making. */
final class Printable {
    private Printable() {
    }

    /**
     * Returns the text in one line, with escapes for characters that control, reorder or hide text.
     *
     * @param value anything with a text, such as an error
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
