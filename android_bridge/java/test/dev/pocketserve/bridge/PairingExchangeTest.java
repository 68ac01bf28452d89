package dev.pocketserve.bridge;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertTrue;
import static org.junit.Assert.fail;

import java.math.BigInteger;
import java.nio.charset.Charset;
import java.nio.file.Files;
import java.nio.file.Paths;
import org.json.JSONArray;
import org.json.JSONObject;
import org.junit.Test;

/** Compares the exchange with the vectors that Python also uses. */
public class PairingExchangeTest {
    private static JSONArray vectors() throws Exception {
        String folder = System.getProperty("pocketserve.vectors", "android_bridge/vectors");
        byte[] bytes = Files.readAllBytes(Paths.get(folder, "pairing", "exchanges.json"));
        return new JSONArray(new String(bytes, Charset.forName("UTF-8")));
    }

    private static byte[] bytes(JSONObject vector, String name) throws Exception {
        String hex = vector.getString(name);
        byte[] bytes = new byte[hex.length() / 2];
        for (int i = 0; i < bytes.length; i++) {
            bytes[i] = (byte) Integer.parseInt(hex.substring(2 * i, 2 * i + 2), 16);
        }
        return bytes;
    }

    private static PairingExchange startedExchange(JSONObject vector) throws Exception {
        return new PairingExchange(vector.getString("code"), new BigInteger(vector.getString("a"), 16));
    }

    @Test
    public void everyNumberIsAsInTheVectors() throws Exception {
        JSONArray vectors = vectors();
        assertTrue(vectors.length() > 0);
        for (int i = 0; i < vectors.length(); i++) {
            JSONObject vector = vectors.getJSONObject(i);
            PairingExchange exchange = startedExchange(vector);
            assertArrayEquals(bytes(vector, "client_public"), exchange.begin());
            byte[] proof = exchange.prove(bytes(vector, "salt"), bytes(vector, "server_public"));
            assertArrayEquals(bytes(vector, "client_proof"), proof);
            String token = exchange.open(bytes(vector, "server_proof"), bytes(vector, "sealed"));
            assertEquals(vector.getString("token"), token);
        }
    }

    @Test
    public void anythingChangedIsNoticed() throws Exception {
        JSONObject vector = vectors().getJSONObject(0);
        for (String name : new String[] {"server_proof", "sealed"}) {
            byte[] proof = bytes(vector, "server_proof");
            byte[] sealed = bytes(vector, "sealed");
            byte[] changed = name.equals("sealed") ? sealed : proof;
            changed[changed.length - 1] ^= 1;
            PairingExchange exchange = startedExchange(vector);
            exchange.prove(bytes(vector, "salt"), bytes(vector, "server_public"));
            assertNull(exchange.open(proof, sealed));
        }
    }

    @Test
    public void numbersThatWouldRevealTheCodeAreRejected() throws Exception {
        byte[] salt = new byte[PairingExchange.SALT_BYTES];
        byte[] large = new byte[PairingExchange.PUBLIC_BYTES];
        java.util.Arrays.fill(large, (byte) 0xff);
        assertNull(new PairingExchange("123456").prove(salt, new byte[PairingExchange.PUBLIC_BYTES]));
        assertNull(new PairingExchange("123456").prove(salt, large));
    }

    @Test
    public void aCodeMayComeInGroups() throws Exception {
        JSONObject vector = vectors().getJSONObject(0);
        String code = vector.getString("code");
        String spaced = ' ' + code.substring(0, 3) + " - " + code.substring(3) + '\n';
        PairingExchange exchange = new PairingExchange(spaced, new BigInteger(vector.getString("a"), 16));
        exchange.begin();
        byte[] proof = exchange.prove(bytes(vector, "salt"), bytes(vector, "server_public"));
        assertArrayEquals(bytes(vector, "client_proof"), proof);
    }

    @Test
    public void otherCodesAreRejected() {
        for (String code : new String[] {"", "12345", "1234567", "12345a", "abcdef", "\u0661\u0662\u0663456"}) {
            try {
                new PairingExchange(code);
                fail(code);
            } catch (IllegalArgumentException expected) {
                assertTrue(expected.getMessage().contains("6 digits"));
            }
        }
    }

    @Test
    public void secretsDiffer() {
        byte[] first = new PairingExchange("123456").begin();
        byte[] other = new PairingExchange("123456").begin();
        assertEquals(PairingExchange.PUBLIC_BYTES, first.length);
        assertTrue(!java.util.Arrays.equals(first, other));
    }
}
