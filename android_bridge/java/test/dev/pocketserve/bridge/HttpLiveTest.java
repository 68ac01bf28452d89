package dev.pocketserve.bridge;

/** The live cases over HTTP. */
public class HttpLiveTest extends LiveCases {
    @Override
    Transport transport() {
        return Transport.HTTP;
    }
}
