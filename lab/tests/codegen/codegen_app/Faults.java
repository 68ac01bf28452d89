package com.example.app;

import dev.pocketserve.bridge.*;
import java.io.File;
import java.nio.file.Files;
import java.util.Scanner;

public class Faults {
    public static void main(String[] given) throws Exception {
        byte[] seven = Files.readAllBytes(new File(given[0], "seven.png").toPath());
        Scanner lines = new Scanner(System.in);
        try (PocketServe server = PocketServe.builder().transport(Transport.valueOf(given[1]))
                .socketPort(Integer.parseInt(given[2])).httpPort(Integer.parseInt(given[3]))
                .tokenFile(new File(given[4])).retries(0).reconnectMs(0).build()) {
            Digits digits = new Digits(server);
            while (lines.hasNextLine()) {
                try {
                    if (lines.nextLine().equals("check")) {
                        digits.check();
                    }
                    System.out.println(digits.classify(seven).getBest().getText());
                } catch (PocketServeException error) {
                    System.out.println(error.getCode() + ": " + error.getMessage());
                }
                System.out.flush();
            }
        }
    }
}
