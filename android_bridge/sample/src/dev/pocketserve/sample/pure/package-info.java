/** The parts of the app without Android, which are tested on a desktop's Java. Nothing here imports android.*. */
package dev.pocketserve.sample.pure;
