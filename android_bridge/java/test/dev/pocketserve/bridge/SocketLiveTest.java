package dev.pocketserve.bridge;

/** The live cases over the socket. */
public class SocketLiveTest extends LiveCases {
    @Override
    Transport transport() {
        return Transport.SOCKET;
    }
}
