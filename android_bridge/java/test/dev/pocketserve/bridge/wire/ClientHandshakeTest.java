package dev.pocketserve.bridge.wire;

import static org.junit.Assert.assertEquals;

import java.util.Arrays;
import org.junit.Test;

/** Compares with the protocol's worked example; the key is the bytes 00 to 1f. */
public class ClientHandshakeTest {
    private static byte[] filled(int value) {
        byte[] bytes = new byte[16];
        Arrays.fill(bytes, (byte) value);
        return bytes;
    }

    @Test
    public void helloIsAsDesigned() {
        byte[] hello = new ClientHandshake("x", filled(0xc0), 67_108_864, "").hello();
        assertEquals(99, hello.length);
        assertEquals("4f4901000000000000000000000000004b0000004b000000",
                ClientHandshake.hex(Arrays.copyOf(hello, 24)));
    }

    @Test
    public void proofsAreAsDesigned() throws Exception {
        byte[] key = new byte[32];
        for (int i = 0; i < key.length; i++) {
            key[i] = (byte) i;
        }
        String nonce = ClientHandshake.hex(filled(0x5e));
        byte[] challenge = FrameEncoder.jsonFrame(FrameType.CHALLENGE, 0, 0,
                ("{\"v\":1,\"nonce\":\"" + nonce + "\",\"auth\":\"hmac-sha256\"}").getBytes("US-ASCII"));
        assertEquals(95, challenge.length);
        byte[] hello = new ClientHandshake("x", filled(0xc0), 67_108_864, "").hello();
        byte[] transcript = ClientHandshake.transcript(hello, challenge);
        assertEquals("407bafc917bce6fedb1ef4e09a84f8bf3dd62d4675adc4c455cad85de3f0e484",
                ClientHandshake.hex(transcript));
        assertEquals("ab6825554945d6acf70f125a2dff7360804f37400c7da3ac6d00c76d86da8f8e",
                ClientHandshake.clientProof(key, transcript));
        assertEquals("0691646e8181041393b16b32a95222e2cece4f85092bbf40b067619ac19ee389",
                ClientHandshake.serverProof(key, transcript));
    }

    @Test
    public void headersAreAsDesigned() {
        byte[] request = FrameEncoder.requestHead(1, 5000, "POST /v2/models/m/infer", null, 134, 142, 0);
        assertEquals("4f491000010000008813000017000000860000008e000000",
                ClientHandshake.hex(Arrays.copyOf(request, 24)));
        assertEquals("4f49300000000000efbeadde000000000000000000000000",
                ClientHandshake.hex(FrameEncoder.emptyFrame(FrameType.PING, 0, 0xdeadbeefL)));
        assertEquals("4f492000010000000000000000000000" + "0000000000000000",
                ClientHandshake.hex(FrameEncoder.emptyFrame(FrameType.CANCEL, 1, 0)));
    }
}
